// Opens NCCL. Its header is compared with the declarations here where it is available.
#include "weft/cuda/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "weft/core/error.h"
#include "weft/cuda/open_library.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>
#endif

namespace weft::cuda::nccl {
namespace {

#ifdef NCCL_MAJOR

static_assert(kOk == ncclSuccess && kInProgress == ncclInProgress);
static_assert(kU8 == ncclUint8 && kI32 == ncclInt32 && kI64 == ncclInt64 && kF16 == ncclFloat16 &&
              kF32 == ncclFloat32 && kF64 == ncclFloat64 && kBf16 == ncclBfloat16);
static_assert(static_cast<int>(Reduce::sum) == ncclSum &&
              static_cast<int>(Reduce::max) == ncclMax && static_cast<int>(Reduce::min) == ncclMin);
static_assert(kNoColor == NCCL_SPLIT_NOCOLOR);

// Whether a value is passed in the same way: pointers, integers and enumerations of one size, and
// structures of one size.
template <class A, class B>
constexpr bool passed_alike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>&& std::is_class_v<A> ==
                                  std::is_class_v<B>&& std::is_floating_point_v<A> ==
                                  std::is_floating_point_v<B>;
template <class Result, class... Args, class Result2, class... Args2>
consteval bool same_call(Result (*)(Args...), Result2 (*)(Args2...)) {
  if constexpr (sizeof...(Args) == sizeof...(Args2))
    return passed_alike<Result, Result2> && (passed_alike<Args, Args2> && ...);
  else
    return false;
}
constexpr Library kNone{};
static_assert(same_call(kNone.version, decltype(&ncclGetVersion){}) &&
              same_call(kNone.make_id, decltype(&ncclGetUniqueId){}) &&
              same_call(kNone.connect, decltype(&ncclCommInitRankConfig){}) &&
              same_call(kNone.split, decltype(&ncclCommSplit){}) &&
              same_call(kNone.disconnect, decltype(&ncclCommDestroy){}) &&
              same_call(kNone.abort, decltype(&ncclCommAbort){}) &&
              same_call(kNone.failure, decltype(&ncclCommGetAsyncError){}) &&
              same_call(kNone.text, decltype(&ncclGetErrorString){}) &&
              same_call(kNone.last_error, decltype(&ncclGetLastError){}) &&
              same_call(kNone.begin, decltype(&ncclGroupStart){}) &&
              same_call(kNone.end, decltype(&ncclGroupEnd){}) &&
              same_call(kNone.all_reduce, decltype(&ncclAllReduce){}) &&
              same_call(kNone.reduce, decltype(&ncclReduce){}) &&
              same_call(kNone.reduce_scatter, decltype(&ncclReduceScatter){}) &&
              same_call(kNone.all_gather, decltype(&ncclAllGather){}) &&
              same_call(kNone.broadcast, decltype(&ncclBroadcast){}) &&
              same_call(kNone.send, decltype(&ncclSend){}) &&
              same_call(kNone.receive, decltype(&ncclRecv){}));
static_assert(!same_call(kNone.broadcast, decltype(&ncclReduce){}));
#ifdef NCCL_REVOKE_DEFAULT  // the first releases of 2.28 have no ncclCommRevoke
static_assert(same_call(kNone.revoke, decltype(&ncclCommRevoke){}));
#endif
static_assert(sizeof(Id) == sizeof(ncclUniqueId) && sizeof(Config) <= sizeof(ncclConfig_t) &&
              offsetof(Config, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(Config, version) == offsetof(ncclConfig_t, version) &&
              offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(Config, net_name) == offsetof(ncclConfig_t, netName) &&
              offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));
constexpr int kHeader = NCCL_VERSION_CODE;
#else
constexpr int kHeader = 0;
#endif

// Needed for ncclBfloat16, communicators that connect without blocking, and grouped aborts, and
// known to work with drivers of CUDA 12.
constexpr int kOldest = 21800;

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
  find(l.connect, "ncclCommInitRankConfig");
  find(l.split, "ncclCommSplit");
  find(l.disconnect, "ncclCommDestroy");
  find(l.abort, "ncclCommAbort");
  l.revoke = reinterpret_cast<decltype(l.revoke)>(dlsym(file, "ncclCommRevoke"));
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

}  // namespace

int header_version() { return kHeader; }

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace weft::cuda::nccl
