#pragma once
#include <atomic>
#include <cstdint>

namespace weft::detail {

/// Runs f(context, begin, end) for `chunks` ranges that cover [0, n), on the calling thread and on
/// up to threads - 1 workers.
///
/// The ranges are dealt out evenly, so that a thread meets the same rows from one loop to the next
/// and finds them in its cache; who is done early takes from the others, so that a thread which the
/// system took away for a while delays only the range that it had begun. Workers wait for the next
/// loop by spinning, but not for long: a machine that other programs share gets its processors
/// back. After a fork() the child has no workers and does its loops alone; fork() is not to be
/// called inside one.
///
/// One loop at a time: false, and nothing done, while another thread's loop has the workers.
class ThreadPool {
 public:
  using RangeFn = void (*)(void* context, std::int64_t begin, std::int64_t end);

  /// The calling thread's: the one that it has borrowed, else the process's.
  static ThreadPool& get();
  /// A pool of its own for the calling thread until put_back(), so that its loops run beside those
  /// of others; returns what it had before.
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
  alignas(kLine) std::atomic<int> turn_;  ///< grows by one with each loop
  alignas(kLine) std::atomic<int> inside_{0};
  std::atomic<bool> open_{false}, taken_{false};
  int workers_ = 0;
  ThreadPool* next_spare_ = nullptr;
};

}  // namespace weft::detail
