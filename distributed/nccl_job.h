#pragma once
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/core/kernels/nccl.h"
#include "weft/distributed/flight_recorder.h"
#include "weft/distributed/operation.h"
#include "weft/distributed/world.h"

namespace weft::distributed {

/// State shared by the groups of one rank on its GPU: a stream for the collectives of each queue,
/// events to wait for them, and a watcher thread that detects collectives that do not finish.
///
/// Kernels of several communicators wait for other ranks at the same time, so all must fit on the
/// GPU together: else two ranks that start them in different order would wait for each other. That
/// is why each uses few blocks. The host calls them in the same order on every rank.
class NcclJob {
 public:
  /// Fails when `bootstrap` reports that its job has failed, and tells it of failures of its own.
  /// `bootstrap` must outlive this object.
  NcclJob(Device device, World& bootstrap, const WorldOptions& options);
  ~NcclJob();

  Device device() const { return device_; }
  cuda::rt::StreamHandle stream(int queue) const { return stream_of(queue).handle(); }
  /// Sets the flight recorder that holds the rank's operations, by number.
  void set_recorder(std::shared_ptr<FlightRecorder> recorder);
  /// Sets the world ranks of a group, which reports on its collectives name.
  void add_group(const std::string& name, const std::vector<int>& ranks);
  /// Connects the communicator of the world, all of whose ranks call it. Throws Error if that fails
  /// or lasts too long.
  cuda::nccl::Comm connect(const cuda::nccl::Id& id, int rank, int size);
  /// Splits the world's communicator for the groups of this name, when all earlier collectives have
  /// ended: see cuda::nccl::split(). Throws Error as connect().
  cuda::nccl::Comm split(cuda::nccl::Comm world, int color, int key, const std::string& group);

  /// Runs call(), which hands an operation to NCCL on stream(queue), ordered after the work already
  /// in the caller's stream. Throws Error when the job has failed.
  template <class Call>
  void run(const Operation& op, int queue, cuda::nccl::Comm comm, Call call) {
    begin(op, queue);
    try {
      call();
      wait_ready(comm, [&] { return describe(op); });
    } catch (const std::exception& e) {
      fail(e.what());
      abandon(op, queue);  // NCCL may have begun it
      end(op, queue);
      check_well();
    }
    end(op, queue);
  }
  /// Makes the caller's stream wait for the operation; with `host`, the host waits too.
  void join(const Operation& op, int queue, bool host);
  /// Called instead of join() when the Work is dropped without wait().
  void abandon(const Operation& op, int queue);
  /// Throws Error when the job has failed.
  void check_well() const;
  /// Empty, or why the job has failed. Callable from any thread.
  std::string failure() const;
  /// Waits for collectives in flight and disconnects. Nothing may be called after that.
  void finish();
  /// After finish(): why collectives in flight did not end, or empty.
  std::string aborted_in_flight() const { return aborted_in_flight_ ? failure() : std::string(); }
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
  const cuda::Stream& stream_of(int queue) const {
    return streams_[static_cast<std::size_t>(queue)];
  }
  void begin(const Operation& op, int queue);
  void end(const Operation& op, int queue);
  void used_on(const Operation& op, int queue, int joined);
  void synchronize() const;
  template <class Make>
  cuda::nccl::Comm make(const std::string& group, Make begin);
  void wait_ready(cuda::nccl::Comm comm, const std::function<std::string()>& what);
  void fail(const std::string& why);
  void watch();
  void stop_watching();
  void abort_all(std::unique_lock<std::mutex>& lock);
  std::string failure_of_comms() const;
  std::string look(std::optional<FlightEntry>& hanging);
  void record_ends();
  void try_to_record_ends();
  std::string diagnosis(const FlightEntry& hanging) const;
  std::string answer(const std::string& question) const;

  const Device device_;
  World& bootstrap_;
  const int rank_;
  const double timeout_, last_resort_;
  const std::string dump_folder_;
  std::vector<cuda::Stream> streams_;  // by queue
  cuda::Event ready_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::array<Slot, 256> slots_;
  std::vector<cuda::nccl::Comm> comms_;
  std::map<std::string, std::vector<int>> groups_;  // world ranks by name
  std::shared_ptr<FlightRecorder> recorder_;
  std::string failure_;
  bool aborted_in_flight_ = false;  // a collective was in flight when the job failed
  bool calling_ = false;            // the rank's own thread is inside NCCL
  bool stopping_ = false;
  std::thread watcher_;
};

class NcclComms;

/// A group over NCCL, connected at its first collective. Each collective is one NCCL call or one
/// grouped call.
class NcclChannel : public Channel {
 public:
  NcclChannel(const GroupCall& call, std::shared_ptr<NcclJob> job,
              std::shared_ptr<NcclComms> comms);
  void run(Operation& op) override;
  void finish(Operation& op) override;
  void abandon(Operation& op) override;
  void check_well() override { job_->check_well(); }
  Device device() const override { return job_->device(); }

 private:
  void call(const Operation& op);
  void gather(const Operation& op);
  void reduce(const Operation& op);
  void all_to_all(const Operation& op);

  void connect();

  const GroupCall call_;
  std::shared_ptr<NcclJob> job_;
  std::shared_ptr<NcclComms> comms_;
  cuda::nccl::Comm comm_ = nullptr;  // null until the first collective
  Tensor token_;                     // operand of a barrier
};

}  // namespace weft::distributed
