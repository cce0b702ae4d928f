#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "weft/distributed/world.h"

namespace weft::distributed {

/// Makes all collectives of one rank, in the order of the calls, while the rank's own thread
/// computes. When that one waits and the next collective has not begun, it makes it itself: a
/// change of threads costs more than a small collective. Without a thread (fake ranks) the caller
/// makes all of them at once.
class CommThread {
 public:
  /// `ranks` is how many the largest group may have. `idle`, if any, is called every few
  /// milliseconds while there is nothing to do, between collectives: other ranks may ask something.
  /// It must not throw.
  CommThread(int rank, int ranks, const WorldOptions& options, bool threaded,
             std::function<void()> idle = {});
  ~CommThread();
  CommThread(const CommThread&) = delete;

  // For the rank's own thread.
  /// An empty operation, held until give_back().
  Operation& take();
  /// Without `wake` it may begin only when it, or a later one, is waited for.
  void submit(Operation& op, bool wake);
  /// Throws Error when this collective or one before it failed.
  void wait(Operation& op);
  void give_back(Operation& op);
  /// Ends after what is queued; nothing may be submitted any more.
  void stop();

  CommStats stats() const;
  const std::shared_ptr<FlightRecorder>& recorder() const { return recorder_; }

 private:
  void work();
  void look_around(std::unique_lock<std::mutex>& lock);
  void make_next(std::unique_lock<std::mutex>& lock);
  bool run(Operation& op, const std::string& failure);
  void recycle(Operation& op);
  Operation& add_operation();

  const int rank_, ranks_;
  const SimulatedLink link_;
  const std::string dump_folder_;
  const std::function<void()> idle_;
  const std::shared_ptr<FlightRecorder> recorder_;

  // The rank's own thread only.
  std::vector<std::unique_ptr<Operation>> operations_;
  Operation* free_ = nullptr;
  int abandoned_ = 0;  // given back before they were done

  mutable std::mutex mutex_;
  std::condition_variable wake_, finished_;
  Operation *first_ = nullptr, *last_ = nullptr;  // the queue
  bool running_ = false;                          // somebody makes a collective
  bool waiting_ = false;                          // the rank's own thread sleeps
  bool stopping_ = false;
  std::string failure_;  // of the first collective that failed: no other one is tried
  CommStats stats_;
  std::thread thread_;
};

}  // namespace weft::distributed
