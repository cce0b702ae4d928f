#pragma once
// The emulated driver: the queues of work of its streams, and the memory that it has handed out.
// cuda/emu/runtime.cpp implements the CUDA runtime on it.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::emu {

using Work = std::function<void()>;
using Clock = std::chrono::steady_clock;

/// A stream.
struct Queue {
  int device = 0;
  std::deque<Work> waiting;
  std::uint64_t submitted = 0, finished = 0;  ///< work items
  std::condition_variable_any ended, wanted;  ///< an item has ended; its own thread has work
  int asleep = 0;                             ///< threads that wait for `ended`
  std::uint64_t prompt = 0;  ///< the queue's own thread runs the items up to this one
  bool running = false;      ///< an item is being executed, by `runner`
  std::thread::id runner;
  bool has_thread = false;
  std::exception_ptr error;  ///< of an item that the queue's own thread ran
  std::vector<Work>* recording = nullptr;
};

/// An event.
struct Mark {
  int device = 0;
  Queue* queue = nullptr;  ///< where it was last recorded; null: not recorded
  std::uint64_t number = 0;
  bool captured = false;  ///< recorded into a graph
  Clock::time_point time;
};

/// A recursive lock that a thread can release at all levels while it waits.
class DriverLock {
 public:
  void lock() {
    mutex_.lock();
    ++levels_;
  }
  void unlock() {
    --levels_;
    mutex_.unlock();
  }
  int release() {
    const int levels = levels_;
    for (int i = 0; i < levels; ++i) unlock();
    return levels;
  }

 private:
  std::recursive_mutex mutex_;
  int levels_ = 0;
};

/// One lock for the whole emulated driver; ranks that are threads share it.
struct Driver {
  DriverLock mutex;
  std::vector<std::unique_ptr<Queue>> queues;
  struct Block {
    std::int64_t bytes;
    int device;
  };
  std::map<char*, Block> blocks;         ///< device memory
  std::map<char*, std::int64_t> pinned;  ///< host memory that copies read when they execute
  std::map<int, std::int64_t> used;      ///< bytes by device
  int access = 0;                        ///< > 0 while device memory may be accessed
  bool open = false;                     ///< device memory is accessible now
  Clock::duration passed{};              ///< by pass_time()
};
Driver& driver();

inline constexpr std::int64_t kPage = 4096;
inline std::size_t whole_pages(std::int64_t bytes) {
  return static_cast<std::size_t>((bytes + kPage - 1) & ~(kPage - 1));
}

/// Appends work, or records it if the queue is captured. Prompt work is run by a thread of the
/// queue as soon as it can be.
void submit(Queue& q, Work work, bool prompt = false);
/// Runs the queue's work up to and including item `until`. Waits while another thread runs some of
/// it.
void run_until(Queue& q, std::uint64_t until);
/// Runs all work of a device.
void synchronize_queues(int device);
/// Whether p lies in pinned host memory.
bool is_pinned(const void* p);

}  // namespace weft::emu
