#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace weft {
namespace detail {
class ThreadPool;
}

/// Number of threads that kernels may use, at least 1. Default: OMP_NUM_THREADS if set, else the
/// number of processors that this process may use or its cgroup quota, rounded up.
/// set_num_threads() throws Error unless n is in [1, 8192].
void set_num_threads(int n);
int num_threads();

/// Until the end of the scope, kernels of this thread use at most n threads, whatever
/// set_num_threads() says, and run on a thread pool of their own. For ranks that are threads of one
/// process and run their loops at the same time.
class ThreadLimit {
 public:
  explicit ThreadLimit(int n);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;

 private:
  int previous_;
  detail::ThreadPool* previous_pool_;
};

/// In deterministic mode results do not depend on the number of threads either (products by oneDNN
/// are cut into tiles of fixed size). Off by default; docs/determinism.md states the
/// cost.
void set_deterministic(bool on);
bool deterministic();

namespace detail {
using RangeFn = void (*)(void* context, std::int64_t begin, std::int64_t end);
void parallel_run(std::int64_t n, int chunks, int threads, RangeFn fn, void* context);
bool in_parallel();
}  // namespace detail

/// Calls f(begin, end) on contiguous ranges that cover [0, n), on several threads when the work is
/// large enough. `work` is the cost of one item in simple operations (about one per float touched).
/// All threading in Weft goes through this function: kernels must give the same bits for any split
/// of the range and must not throw inside.
template <class F>
inline void parallel_for(std::int64_t n, std::int64_t work, F&& f) {
  constexpr std::int64_t kSerialBelow = 1 << 15, kFineAbove = 1 << 20;
  if (n <= 0) return;
  const int threads = n * work < kSerialBelow ? 1 : num_threads();
  if (threads <= 1 || n == 1 || detail::in_parallel()) {
    f(std::int64_t{0}, n);
    return;
  }
  using Fn = std::remove_reference_t<F>;
  const int chunks = n * work < kFineAbove ? threads : 4 * threads;
  detail::parallel_run(
      n, static_cast<int>(std::min<std::int64_t>(chunks, n)), threads,
      [](void* context, std::int64_t begin, std::int64_t end) {
        (*static_cast<Fn*>(context))(begin, end);
      },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace weft
