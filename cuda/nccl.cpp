// NCCL's C interface, opened at first use: a program with one GPU or none does not need NCCL. The
// values are compared with its header where that is available.
#include "weft/core/kernels/nccl.h"

#include "weft/core/error.h"
#include "weft/cuda/open_library.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

namespace weft::cuda::nccl {
namespace {

using Status = int;
using Stream = rt::StreamHandle;
constexpr Status kOk = 0, kInProgress = 7;
constexpr int kU8 = 1, kI32 = 2, kI64 = 4, kF16 = 6, kF32 = 7, kF64 = 8, kBf16 = 9;
// Needed for ncclBfloat16, sends and receives, and known to work with drivers of CUDA 12.
constexpr int kOldest = 21800;

#ifdef NCCL_MAJOR
static_assert(kOk == ncclSuccess && kInProgress == ncclInProgress);
static_assert(kU8 == ncclUint8 && kI32 == ncclInt32 && kI64 == ncclInt64 && kF16 == ncclFloat16 &&
              kF32 == ncclFloat32 && kF64 == ncclFloat64 && kBf16 == ncclBfloat16);
static_assert(static_cast<int>(Reduce::sum) == ncclSum &&
              static_cast<int>(Reduce::max) == ncclMax && static_cast<int>(Reduce::min) == ncclMin);
static_assert(sizeof(Id) == sizeof(ncclUniqueId));
#endif

struct Library {
  Status (*version)(int*);
  Status (*make_id)(Id*);
  Status (*connect)(Comm*, int size, Id, int rank);
  Status (*disconnect)(Comm);
  Status (*abort)(Comm);
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

Library load() {
  void* const file = open_library("libnccl.so.2", "collectives of GPUs");
  Library l{};
  const auto find = [file](auto& function, const char* name) {
    find_function(file, "libnccl", function, name);
  };
  find(l.version, "ncclGetVersion");
  int version = 0;
  check_system(l.version(&version) == kOk && version >= kOldest,
               "cuda: libnccl must be at least version {}, got {}", kOldest, version);
  find(l.make_id, "ncclGetUniqueId");
  find(l.connect, "ncclCommInitRank");
  find(l.disconnect, "ncclCommDestroy");
  find(l.abort, "ncclCommAbort");
  find(l.failure, "ncclCommGetAsyncError");
  find(l.text, "ncclGetErrorString");
  find(l.last_error, "ncclGetLastError");
  find(l.begin, "ncclGroupStart");
  find(l.end, "ncclGroupEnd");
  find(l.all_reduce, "ncclAllReduce");
  find(l.reduce, "ncclReduce");
  find(l.reduce_scatter, "ncclReduceScatter");
  find(l.all_gather, "ncclAllGather");
  find(l.broadcast, "ncclBroadcast");
  find(l.send, "ncclSend");
  find(l.receive, "ncclRecv");
  return l;
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

std::string words(Status status, Comm comm) {
  const char* const more = library().last_error(comm);
  return more && *more ? message("{}: {}", library().text(status), more) : library().text(status);
}

void ok(Status status, const char* what, Comm comm = nullptr) {
  if (status == kOk || status == kInProgress) [[likely]]
    return;
  check_system(false, "nccl: {} failed: {}", what, words(status, comm));
}

int type_of(DType t) {
  switch (t) {
    case DType::f32:
      return kF32;
    case DType::f64:
      return kF64;
    case DType::bf16:
      return kBf16;
    case DType::f16:
      return kF16;
    case DType::i32:
      return kI32;
    case DType::i64:
      return kI64;
    case DType::u8:
      return kU8;
    default:
      throw_bad_dtype("reduction over ranks", t, kNumericNames);
  }
}

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

int version() {
  int v = 0;
  ok(library().version(&v), "ncclGetVersion");
  return v;
}

Id make_id() {
  Id id;
  ok(library().make_id(&id), "ncclGetUniqueId");
  return id;
}

Comm connect(const Id& id, int rank, int ranks) {
  Comm comm = nullptr;
  ok(library().connect(&comm, ranks, id, rank), "ncclCommInitRank");
  return comm;
}

void disconnect(Comm comm) { ok(library().disconnect(comm), "ncclCommDestroy"); }
void abort(Comm comm) { ok(library().abort(comm), "ncclCommAbort"); }

std::string failure(Comm comm) {
  Status status = kOk;
  ok(library().failure(comm, &status), "ncclCommGetAsyncError", comm);
  return status == kOk || status == kInProgress ? "" : words(status, comm);
}

void begin() { ok(library().begin(), "ncclGroupStart"); }
void end() { ok(library().end(), "ncclGroupEnd"); }

void all_reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce how, Comm comm,
                Stream s) {
  ok(library().all_reduce(in, out, size(count), type_of(dtype), static_cast<int>(how), comm, s),
     "ncclAllReduce", comm);
}

void reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce how, int root,
            Comm comm, Stream s) {
  ok(library().reduce(in, out, size(count), type_of(dtype), static_cast<int>(how), root, comm, s),
     "ncclReduce", comm);
}

void reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, Reduce how,
                    Comm comm, Stream s) {
  ok(library().reduce_scatter(in, out, size(count), type_of(dtype), static_cast<int>(how), comm, s),
     "ncclReduceScatter", comm);
}

void all_gather(const void* in, void* out, std::int64_t bytes, Comm comm, Stream s) {
  ok(library().all_gather(in, out, size(bytes), kU8, comm, s), "ncclAllGather", comm);
}

void broadcast(const void* in, void* out, std::int64_t bytes, int root, Comm comm, Stream s) {
  ok(library().broadcast(in, out, size(bytes), kU8, root, comm, s), "ncclBroadcast", comm);
}

void send(const void* data, std::int64_t bytes, int to, Comm comm, Stream s) {
  ok(library().send(data, size(bytes), kU8, to, comm, s), "ncclSend", comm);
}

void receive(void* data, std::int64_t bytes, int from, Comm comm, Stream s) {
  ok(library().receive(data, size(bytes), kU8, from, comm, s), "ncclRecv", comm);
}

}  // namespace weft::cuda::nccl
