#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "weft/distributed/world.h"

namespace weft::distributed {

/// The thread that makes all collectives of one rank, in the order of the calls, while the rank's
/// own thread computes. Without a thread (fake ranks) they are made at once by the caller.
class CommThread {
 public:
  CommThread(const WorldOptions& options, bool threaded);
  ~CommThread();
  CommThread(const CommThread&) = delete;

  void submit(const std::shared_ptr<Operation>& op);
  /// Ends after what is queued; nothing may be submitted any more.
  void stop();
  void waited(double seconds);

  CommStats stats() const;
  const FlightRecorder& recorder() const { return recorder_; }

 private:
  struct Job {
    std::shared_ptr<Operation> op;
    std::int64_t number;  // in the recorder
  };
  void work();
  void run(Operation& op, std::int64_t number);

  const SimulatedLink link_;
  FlightRecorder recorder_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  bool stopping_ = false;
  CommStats stats_;
  std::thread thread_;
};

}  // namespace weft::distributed
