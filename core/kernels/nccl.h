#pragma once
#include <cstdint>
#include <string>

#include "weft/core/dtype.h"
#include "weft/core/kernels/cuda_runtime.h"

/// What Weft needs from NCCL, free of its headers. Defined in cuda/nccl.cpp, which opens the
/// library when it is first needed, and once more in cuda/emu/nccl.cpp, where GPUs are imitated.
/// Referenced in builds with CUDA only. Everything throws Error (Fault::system) with NCCL's words
/// when it fails. Memory is that of the current device; work goes to a stream and is done in its
/// order.
namespace weft::cuda::nccl {

/// By which the ranks of a communicator find each other: made by one of them, sent to the others.
struct Id {
  char bytes[128] = {};
};
using Comm = struct CommTag*;
enum class Reduce : int { sum = 0, max = 2, min = 3 };

/// 22809 for 2.28.9.
int version();
Id make_id();
/// A communicator on the current device. Waits for all of its ranks.
Comm connect(const Id& id, int rank, int size);
void disconnect(Comm comm);
/// Ends what is under way, on this rank; for use when a rank is lost. Another thread may call it.
void abort(Comm comm);
/// "" or what went wrong meanwhile. Waits for nothing.
std::string failure(Comm comm);

/// What is called between the two is one call: sends and receives, or several roots.
void begin();
void end();

void all_reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce reduce,
                Comm comm, rt::StreamHandle stream);
/// The sum for one rank; out is not used on the others.
void reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce reduce, int root,
            Comm comm, rt::StreamHandle stream);
/// `count` elements for each rank.
void reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, Reduce reduce,
                    Comm comm, rt::StreamHandle stream);
/// `bytes` of each rank.
void all_gather(const void* in, void* out, std::int64_t bytes, Comm comm, rt::StreamHandle stream);
void broadcast(const void* in, void* out, std::int64_t bytes, int root, Comm comm,
               rt::StreamHandle stream);
void send(const void* data, std::int64_t bytes, int to, Comm comm, rt::StreamHandle stream);
void receive(void* data, std::int64_t bytes, int from, Comm comm, rt::StreamHandle stream);

}  // namespace weft::cuda::nccl
