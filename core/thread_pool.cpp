#include "weft/core/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "weft/core/signal_stack.h"

namespace weft::detail {
namespace {

// About 100 and 30 microseconds: longer than the gap between two kernels of a step, far shorter
// than a time slice.
constexpr int kSpinsForWork = 3000, kSpinsForOthers = 1000;

constinit thread_local ThreadPool* borrowed = nullptr;
constinit std::mutex spare_mutex;
constinit ThreadPool* spare_pools = nullptr;
constinit std::atomic<bool> forked{false};

// A child of fork() has one thread. The parent's pools, with workers that do not exist in the child
// and may be counted as inside a loop, would make it wait forever; so would a lock held by another
// thread.
const int at_fork = pthread_atfork(
    [] {
      ThreadPool::get();  // not while another thread creates it
      spare_mutex.lock();
    },
    [] { spare_mutex.unlock(); },
    [] {
      forked.store(true, std::memory_order_relaxed);
      spare_mutex.unlock();
    });

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until value != old: first spinning, then asleep.
void await_change(const std::atomic<int>& value, int old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

// Never destroyed, like the borrowed pools: its threads sleep in it until the process ends.
ThreadPool& ThreadPool::get() {
  if (borrowed) return *borrowed;
  static ThreadPool* pool = new ThreadPool;
  return *pool;
}

ThreadPool* ThreadPool::borrow() {
  const std::lock_guard lock(spare_mutex);
  ThreadPool* const before = borrowed;
  if (!spare_pools) spare_pools = new ThreadPool;
  borrowed = spare_pools;
  spare_pools = std::exchange(borrowed->next_spare_, nullptr);
  return before;
}

void ThreadPool::put_back(ThreadPool* before) {
  const std::lock_guard lock(spare_mutex);
  borrowed->next_spare_ = spare_pools;
  spare_pools = borrowed;
  borrowed = before;
}

void ThreadPool::grow(int workers) {
  for (; workers_ < std::min(workers, kMaxThreads - 1); ++workers_) {
    try {
      std::thread(&ThreadPool::work, this, workers_ + 1).detach();
    } catch (const std::system_error&) {
      return;  // no more threads available: the existing ones do all the work
    }
  }
}

bool ThreadPool::run(std::int64_t n, int chunks, int threads, RangeFn fn, void* context) {
  if (forked.load(std::memory_order_relaxed)) return false;
  if (taken_.exchange(true, std::memory_order_acquire)) return false;
  threads = std::min({threads, chunks, kMaxThreads});
  grow(threads - 1);
  loop_ = {fn, context, n, chunks, threads};
  for (int i = 0; i < threads; ++i)
    counters_[i].next.store(chunks * i / threads, std::memory_order_relaxed);
  open_.store(true);
  turn_.fetch_add(1);
  turn_.notify_all();
  take_part(0);
  // A worker enters, then checks that the loop is open; so no worker can join after this.
  open_.store(false);
  while (const int there = inside_.load()) await_change(inside_, there, kSpinsForOthers);
  taken_.store(false, std::memory_order_release);
  return true;
}

void ThreadPool::take_part(int who) {
  const Loop loop = loop_;
  for (int k = 0; k < loop.threads; ++k) {
    const int share = (who + k) % loop.threads;
    const int stop = loop.chunks * (share + 1) / loop.threads;
    std::atomic<int>& next = counters_[share].next;
    // Read first, to avoid repeated writes to finished shares.
    while (next.load(std::memory_order_relaxed) < stop) {
      const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= stop) break;
      loop.fn(loop.context, loop.n * i / loop.chunks, loop.n * (i + 1) / loop.chunks);
    }
  }
}

void ThreadPool::work(int who) {
  // The program's own threads handle signals. Signals that a thread raises itself stay unblocked,
  // since the kernel would otherwise end the process before a handler runs; so does SIGPROF.
  const SignalStack stack;
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
    sigdelset(&blocked, own);
  pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  int seen = 0;
  for (;;) {
    await_change(turn_, seen, kSpinsForWork);
    seen = turn_.load();
    inside_.fetch_add(1);
    if (open_.load() && who < loop_.threads) take_part(who);
    inside_.fetch_sub(1);
    inside_.notify_all();
  }
}

}  // namespace weft::detail
