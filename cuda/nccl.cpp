// NCCL's C interface.
#include "weft/core/kernels/nccl.h"

#include "weft/core/error.h"
#include "weft/cuda/nccl_library.h"

namespace weft::cuda::nccl {
namespace {

using Status = int;
using Stream = rt::StreamHandle;

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

Comm connect(const Id& id, int rank, int ranks, int max_blocks) {
  Comm comm = nullptr;
  Config config;
  config.blocking = 0;
  if (max_blocks > 0) config.max_blocks = max_blocks;
  ok(library().connect(&comm, ranks, id, rank, &config), "ncclCommInitRankConfig");
  return comm;
}

void split(Comm parent, int color, int key, Comm& made) {
  ok(library().split(parent, color, key, &made, nullptr), "ncclCommSplit", parent);
}

bool ready(Comm comm) {
  Status status = kOk;
  ok(library().failure(comm, &status), "ncclCommGetAsyncError", comm);
  check_system(status == kOk || status == kInProgress, "{}", words(status, comm));
  return status == kOk;
}

void disconnect(Comm comm) { ok(library().disconnect(comm), "ncclCommDestroy"); }
void abort(Comm comm) { ok(library().abort(comm), "ncclCommAbort"); }

bool can_revoke() { return library().revoke != nullptr; }
void revoke(Comm comm) { ok(library().revoke(comm, 0), "ncclCommRevoke"); }

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
