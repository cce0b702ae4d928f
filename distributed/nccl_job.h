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

/// State shared by the groups of one rank on its GPU: the stream for collectives, events to wait
/// for them, and a watcher thread that detects collectives that do not finish.
class NcclJob {
 public:
  /// Also fails when `bootstrap` reports that its job has failed. `bootstrap` must outlive this
  /// object.
  NcclJob(Device device, const World& bootstrap, const WorldOptions& options);
  ~NcclJob();

  Device device() const { return device_; }
  cuda::rt::StreamHandle stream() const { return stream_.handle(); }
  void add(cuda::nccl::Comm comm);
  /// Sets the flight recorder that holds the rank's operations, by number.
  void set_recorder(std::shared_ptr<const FlightRecorder> recorder);

  /// Between begin() and end(), calls go to stream(), ordered after the work already in the
  /// caller's stream. Throws Error when the job has failed.
  void begin(const Operation& op);
  void end(const Operation& op);
  /// Makes the caller's stream wait for the operation; with `host`, the host waits too.
  void join(const Operation& op, bool host);
  /// Waits for collectives in flight and disconnects. Nothing may be called after that.
  void finish();
  /// The same without waiting.
  void give_up();

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    std::int64_t number = -1;  // operation number within the rank
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
  bool calling_ = false;  // between begin() and end()
  bool stopping_ = false;
  std::thread watcher_;
};

/// A group over NCCL. Each collective is one NCCL call or one grouped call.
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
  Tensor token_;  // operand of a barrier
};

}  // namespace weft::distributed
