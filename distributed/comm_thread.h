#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "weft/distributed/flight_recorder.h"
#include "weft/distributed/operation.h"
#include "weft/distributed/world.h"

namespace weft::distributed {

/// A queue of collectives of one rank, which run in call order while the rank's own thread
/// computes. If that thread waits and the next collective has not started, the thread runs it
/// itself, because a thread switch costs more than a small collective. The communication thread
/// starts with the first collective that needs it. Without one (fake ranks) the caller runs every
/// collective immediately.
class CommThread {
 public:
  /// `ranks` is the size of the largest group. `idle`, if set, is called every few milliseconds
  /// while the queue is empty, so that a backend can answer other ranks. It must not throw.
  CommThread(int rank, int ranks, const WorldOptions& options,
             std::shared_ptr<FlightRecorder> recorder, bool threaded, std::function<void()> idle);
  ~CommThread();
  CommThread(const CommThread&) = delete;

  // Called by one thread at a time: the rank's own, or one that asks other ranks while the rank's
  // own reads or writes files (distributed/long_work.h).
  /// Returns an empty operation, reserved until give_back().
  Operation& take();
  /// Without `wake`, the operation may not start until it or a later one is waited for.
  void submit(Operation& op, bool wake);
  /// Throws Error when this collective or an earlier one failed.
  void wait(Operation& op);
  void give_back(Operation& op);
  /// Stops once the queue is empty; nothing may be submitted after that.
  void stop();
  // After stop():
  /// Why a collective has failed; or empty.
  const std::string& failure() const { return failure_; }
  /// Whether the program has seen an error, by wait() or for_program().
  bool has_thrown() const { return has_thrown_; }

  /// Runs f() for the program: it sees an error that f() throws, so the failure of the job needs no
  /// report at the end. Callable from any thread.
  template <class F>
  void for_program(F f) {
    try {
      f();
    } catch (...) {
      has_thrown_ = true;
      throw;
    }
  }
  CommStats stats(Lane lane) const;

 private:
  void work();
  void look_around(std::unique_lock<std::mutex>& lock);
  void make_next(std::unique_lock<std::mutex>& lock);
  void start();
  void carry_out(Operation& op);
  bool run(Operation& op, const std::string& failure);
  CommStats& stats_of(const Operation& op) { return stats_[static_cast<int>(op.lane)]; }
  void recycle(Operation& op);
  Operation& add_operation();

  const int rank_, ranks_;
  const bool threaded_;
  const SimulatedLink link_, data_link_;
  const std::string dump_folder_;
  const std::function<void()> idle_;
  const std::shared_ptr<FlightRecorder> recorder_;

  // Used by the calling thread only.
  std::vector<std::unique_ptr<Operation>> operations_;
  Operation* free_ = nullptr;
  int abandoned_ = 0;  // given back before they were done

  std::atomic<bool> has_thrown_{false};

  mutable std::mutex mutex_;
  std::condition_variable wake_, finished_;
  Operation *first_ = nullptr, *last_ = nullptr;  // the queue
  bool running_ = false;                          // a collective is running
  bool waiting_ = false;                          // the calling thread sleeps
  bool stopping_ = false;
  std::string failure_;  // of the first collective that failed; no later one is started
  CommStats stats_[kLanes];
  std::thread thread_;  // started and joined by the calling thread
};

}  // namespace weft::distributed
