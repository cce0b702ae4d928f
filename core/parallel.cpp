#include "weft/core/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>

#include "weft/core/cgroup.h"
#include "weft/core/default_threads.h"
#include "weft/core/error.h"
#include "weft/core/thread_pool.h"

namespace weft {
namespace {

std::atomic<int> requested_threads{0}, standard_threads{0};  // 0: not set yet
std::atomic<bool> deterministic_mode{false};
thread_local bool inside = false;
constinit thread_local int thread_limit = 0;  // 0: no limit

constexpr int kMostThreads = kMaxProcessors;

void check_threads(const char* op, int n) {
  check(n >= 1, "{}: must be at least 1, got {}", op, n);
  check(n <= kMostThreads, "{}: must be at most {}, got {}", op, kMostThreads, n);
}

// OMP_NUM_THREADS, as other numeric programs read it; a list is for nested loops.
int environment_threads() {
  const char* const wanted = std::getenv("OMP_NUM_THREADS");
  const long n = wanted ? std::strtol(wanted, nullptr, 10) : 0;
  return static_cast<int>(std::clamp<long>(n, 0, kMostThreads));
}

}  // namespace

// When the cgroup quota is below the number of processors, threads that wait for one another use up
// the quota early in each period, and all of them stall until the next one.
int allowed_processors(const std::string& root) {
  // The largest set that Linux supports: the kernel refuses a set smaller than the machine's.
  cpu_set_t allowed[kMaxProcessors / CPU_SETSIZE];
  int n = 1;
  if (sched_getaffinity(0, sizeof allowed, allowed) == 0) n = CPU_COUNT_S(sizeof allowed, allowed);
  if (const auto quota = detail::cgroup_limits(root).processors)
    n = std::min(n, std::max(1, static_cast<int>(std::ceil(*quota - 1e-6))));
  return n;
}

void set_num_threads(int n) {
  check_threads("set_num_threads", n);
  requested_threads = n;
}

void set_default_threads(int n) {
  check_threads("set_default_threads", n);
  if (environment_threads() == 0) standard_threads = n;
}

int num_threads() {
  int n = requested_threads.load(std::memory_order_relaxed);
  if (n <= 0) n = standard_threads.load(std::memory_order_relaxed);
  if (n <= 0) {
    const int environment = environment_threads();
    n = environment > 0 ? environment : allowed_processors();
    int unknown = 0;  // unless set_default_threads() ran first
    if (!standard_threads.compare_exchange_strong(unknown, n)) n = unknown;
  }
  return thread_limit > 0 ? std::min(n, thread_limit) : n;
}

ThreadLimit::ThreadLimit(int n) : previous_(thread_limit) {
  check(n >= 1, "ThreadLimit: must be at least 1, got {}", n);
  thread_limit = n;
  previous_pool_ = detail::ThreadPool::borrow();
}

ThreadLimit::~ThreadLimit() {
  detail::ThreadPool::put_back(previous_pool_);
  thread_limit = previous_;
}

void set_deterministic(bool on) { deterministic_mode = on; }
bool deterministic() { return deterministic_mode.load(std::memory_order_relaxed); }

bool detail::in_parallel() { return inside; }

void detail::parallel_run(std::int64_t n, int chunks, int threads, RangeFn fn, void* context) {
  struct Body {
    RangeFn fn;
    void* context;
  } body{fn, context};
  const auto run = [](void* p, std::int64_t begin, std::int64_t end) {
    const auto* b = static_cast<const Body*>(p);
    inside = true;
    b->fn(b->context, begin, end);
    inside = false;
  };
  // While another thread's loop uses the workers, this thread runs its whole loop itself.
  if (!ThreadPool::get().run(n, chunks, threads, run, &body)) run(&body, 0, n);
}

}  // namespace weft
