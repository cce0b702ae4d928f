#include "weft/core/parallel.h"

#include <atomic>
#include <thread>
#include <vector>

#include "weft/core/error.h"

#if WEFT_USE_OPENMP
#include <omp.h>
#endif

namespace weft {
namespace {

std::atomic<int> requested_threads{0};
std::atomic<bool> deterministic_mode{false};
thread_local bool inside = false;

}  // namespace

void set_num_threads(int n) {
  check(n >= 1, "set_num_threads: must be at least 1, got {}", n);
  requested_threads = n;
#if WEFT_USE_OPENMP
  omp_set_num_threads(n);
#endif
}

int num_threads() {
  const int n = requested_threads.load(std::memory_order_relaxed);
  if (n > 0) return n;
#if WEFT_USE_OPENMP
  return std::max(1, omp_get_max_threads());
#else
  return std::max(1u, std::thread::hardware_concurrency());
#endif
}

void set_deterministic(bool on) { deterministic_mode = on; }
bool deterministic() { return deterministic_mode.load(std::memory_order_relaxed); }

OneThreadScope::OneThreadScope() : was_inside_(inside), library_threads_(1) {
  inside = true;
#if WEFT_USE_OPENMP
  library_threads_ = omp_get_max_threads();
  omp_set_num_threads(1);
#endif
}

OneThreadScope::~OneThreadScope() {
  inside = was_inside_;
#if WEFT_USE_OPENMP
  omp_set_num_threads(library_threads_);
#endif
}

bool detail::in_parallel() { return inside; }

void detail::share_num_threads() {
#if WEFT_USE_OPENMP
  const int n = requested_threads.load(std::memory_order_relaxed);
  if (n > 0 && !inside && omp_get_max_threads() != n) omp_set_num_threads(n);
#endif
}

void detail::parallel_run(std::int64_t n, int chunks, RangeFn fn, void* context) {
  const auto run = [&](int i) {
    inside = true;
    fn(context, n * i / chunks, n * (i + 1) / chunks);
    inside = false;
  };
#if WEFT_USE_OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(chunks)
  for (int i = 0; i < chunks; ++i) run(i);
#else
  // Sanitizer builds: libgomp is not instrumented, std::thread is.
  std::vector<std::thread> threads;
  for (int i = 1; i < chunks; ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& t : threads) t.join();
#endif
}

}  // namespace weft
