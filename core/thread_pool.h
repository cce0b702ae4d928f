#pragma once
#include <atomic>
#include <cstdint>

namespace weft::detail {

/// Runs f(context, begin, end) for `chunks` ranges that cover [0, n), on the calling thread and on
/// up to threads - 1 workers.
///
/// The ranges are dealt out evenly, so that a thread works on the same rows in each loop and finds
/// them in its cache. A thread that finishes early takes ranges from the others, so that a
/// descheduled thread delays only the range that it has begun. Workers spin for the next loop, but
/// only briefly, so that other programs get the processors back. After a fork() the child has no
/// workers and runs its loops alone; do not call fork() inside a loop.
///
/// One loop at a time: returns false, without running anything, while another thread's loop uses
/// the workers.
class ThreadPool {
 public:
  using RangeFn = void (*)(void* context, std::int64_t begin, std::int64_t end);

  /// The pool of the calling thread: the one it borrowed, else that of the process.
  static ThreadPool& get();
  /// Gives the calling thread a private pool until put_back(), so that its loops run in parallel
  /// with those of other threads. Returns the previous pool.
  static ThreadPool* borrow();
  static void put_back(ThreadPool* before);
  bool run(std::int64_t n, int chunks, int threads, RangeFn fn, void* context);

 private:
  static constexpr int kMaxThreads = 256;
  static constexpr int kLine = 64;  // bytes of a cache line

  struct Loop {
    RangeFn fn;
    void* context;
    std::int64_t n;
    int chunks, threads;
  };
  struct alignas(kLine) Counter {
    std::atomic<int> next{0};
  };

  void grow(int workers);
  void work(int who);
  void take_part(int who);

  Loop loop_{};
  Counter counters_[kMaxThreads];         ///< next chunk of each thread's share
  alignas(kLine) std::atomic<int> turn_;  ///< incremented by each loop
  alignas(kLine) std::atomic<int> inside_{0};
  std::atomic<bool> open_{false}, taken_{false};
  int workers_ = 0;
  ThreadPool* next_spare_ = nullptr;
};

}  // namespace weft::detail
