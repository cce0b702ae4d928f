#pragma once
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/core/kernels/nccl.h"
#include "weft/distributed/world.h"

namespace weft::distributed {

/// What the groups of one rank share on its GPU: the stream in which collectives run beside the
/// program's own, marks to wait for them, and a thread that looks for those that do not end.
class NcclJob {
 public:
  /// Also fails when `bootstrap`, which outlives it, says that the job has.
  NcclJob(Device device, const World& bootstrap, const WorldOptions& options);
  ~NcclJob();

  Device device() const { return device_; }
  cuda::rt::StreamHandle stream() const { return stream_.handle(); }
  void add(cuda::nccl::Comm comm);
  /// That has the rank's operations, by number.
  void set_recorder(std::shared_ptr<const FlightRecorder> recorder);

  /// From here to end() calls go to stream(), after what the caller's stream has been given.
  /// Throws Error when the job has failed.
  void begin(const Operation& op);
  void end(const Operation& op);
  /// What the caller's stream gets next comes after the operation; with `host`, so does the caller.
  void join(const Operation& op, bool host);
  /// Waits for what is under way, and disconnects. Nothing may be called any more.
  void finish();
  /// The same without waiting.
  void give_up();

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    std::int64_t number = -1;  // of the operation, among the rank's
    bool busy = false, marked = false;
    cuda::Event done;
    Clock::time_point begun{};
  };

  Slot& slot(std::int64_t number) {
    return slots_[static_cast<std::size_t>(number) % slots_.size()];
  }
  void watch();
  void stop_watching();
  void abort_all();
  std::string look();
  std::string describe(std::int64_t number) const;
  void check_well();

  const Device device_;
  const World& bootstrap_;
  const int rank_;
  const double timeout_;
  const std::string dump_folder_;
  cuda::Stream stream_;
  cuda::Event ready_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::array<Slot, 256> slots_;
  std::vector<cuda::nccl::Comm> comms_;
  std::shared_ptr<const FlightRecorder> recorder_;
  std::string failure_;
  bool calling_ = false;  // a call of the library has begun and not ended
  bool stopping_ = false;
  std::thread watcher_;
};

/// A group over NCCL: one call of the library, or several as one, for each collective.
class NcclChannel : public Channel {
 public:
  NcclChannel(const std::string& name, const std::vector<int>& ranks, int rank,
              std::shared_ptr<NcclJob> job, const cuda::nccl::Id& id);
  void run(Operation& op) override;
  void finish(Operation& op) override;
  Device device() const override { return job_->device(); }

 private:
  void call(const Operation& op);
  void gather(const Operation& op);
  void reduce(const Operation& op);
  void all_to_all(const Operation& op);

  std::shared_ptr<NcclJob> job_;
  cuda::nccl::Comm comm_ = nullptr;
  Tensor token_;  // what a barrier adds
};

}  // namespace weft::distributed
