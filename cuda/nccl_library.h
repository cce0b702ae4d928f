#pragma once
#include <climits>
#include <cstddef>

#include "weft/core/kernels/nccl.h"

namespace weft::cuda::nccl {

// Values of its enumerations.
inline constexpr int kOk = 0, kInProgress = 7;
inline constexpr int kU8 = 1, kI32 = 2, kI64 = 4, kF16 = 6, kF32 = 7, kF64 = 8, kBf16 = 9;

/// NCCL's ncclConfig_t as it was in version 2.18: a newer library reads the size first, and takes
/// its defaults for what has been added since.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21800;
  int blocking = INT_MIN, cluster_size = INT_MIN, min_blocks = INT_MIN, max_blocks = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

/// The functions of libnccl.so.2 that Weft calls.
struct Library {
  using Status = int;
  using Stream = rt::StreamHandle;
  Status (*version)(int*);
  Status (*make_id)(Id*);
  Status (*connect)(Comm*, int size, Id, int rank, Config*);
  Status (*split)(Comm, int color, int key, Comm*, Config*);
  Status (*disconnect)(Comm);
  Status (*abort)(Comm);
  Status (*revoke)(Comm, int flags);  ///< null before 2.28.9, or an earlier release of 2.28
  Status (*failure)(Comm, Status*);
  const char* (*text)(Status);
  const char* (*last_error)(Comm);
  Status (*begin)();
  Status (*end)();
  Status (*all_reduce)(const void*, void*, std::size_t, int, int, Comm, Stream);
  Status (*reduce)(const void*, void*, std::size_t, int, int, int, Comm, Stream);
  Status (*reduce_scatter)(const void*, void*, std::size_t, int, int, Comm, Stream);
  Status (*all_gather)(const void*, void*, std::size_t, int, Comm, Stream);
  Status (*broadcast)(const void*, void*, std::size_t, int, int, Comm, Stream);
  Status (*send)(const void*, std::size_t, int, int, Comm, Stream);
  Status (*receive)(void*, std::size_t, int, int, Comm, Stream);
};

/// Opens the library at the first call: a program with one GPU or none does not need it.
/// Throws Error (Fault::system) if it is not found, too old, or has no such function.
const Library& library();
/// The version of the header with which these declarations were compared when Weft was compiled; 0:
/// there was none.
int header_version();

}  // namespace weft::cuda::nccl
