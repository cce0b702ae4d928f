#include "weft/distributed/nccl_job.h"

#include "weft/core/error.h"
#include "weft/distributed/flight_recorder.h"

#if WEFT_WITH_CUDA

namespace weft::distributed {
namespace {

constexpr std::chrono::milliseconds kLook{50};
// Time for a call to be enqueued; a longer call waits for other ranks.
constexpr std::chrono::seconds kHandOver{1};

}  // namespace

NcclJob::NcclJob(Device device, const World& bootstrap, const WorldOptions& options)
    : device_(device),
      bootstrap_(bootstrap),
      rank_(bootstrap.rank()),
      timeout_(options.timeout_s),
      dump_folder_(options.dump_folder),
      stream_(cuda::Stream::take(device)),
      watcher_([this] { watch(); }) {}

NcclJob::~NcclJob() {
  finish();
  stream_.give_back();
}

void NcclJob::add(cuda::nccl::Comm comm) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(comm);
}

void NcclJob::set_recorder(std::shared_ptr<const FlightRecorder> recorder) {
  const std::lock_guard lock(mutex_);
  recorder_ = std::move(recorder);
}

void NcclJob::check_well() {
  const std::lock_guard lock(mutex_);
  check_system(failure_.empty(), "{}", failure_);
}

void NcclJob::begin(const Operation& op) {
  check_well();
  cuda::detail::use_device(device_.index);
  Slot& s = slot(op.number);
  if (s.number >= 0 && !s.done.done()) s.done.synchronize();  // all slots are in use
  ready_.record(cuda::Stream::current(device_));
  ready_.wait(stream_);
  for (const Tensor& t : {op.out, op.in})
    if (t.defined()) cuda::record_stream(t, stream_);
  const std::lock_guard lock(mutex_);
  check_system(failure_.empty(), "{}", failure_);
  calling_ = true;
  s.number = op.number;
  s.begun = Clock::now();
  s.busy = true;
  s.marked = false;
}

void NcclJob::end(const Operation& op) {
  const std::lock_guard lock(mutex_);
  calling_ = false;
  Slot& s = slot(op.number);
  s.done.record(stream_);
  s.marked = true;
  wake_.notify_all();
}

void NcclJob::join(const Operation& op, bool host) {
  check_well();
  cuda::detail::use_device(device_.index);
  const Slot& s = slot(op.number);
  if (s.number != op.number) return;  // the slot was reused: the operation has ended
  s.done.wait(cuda::Stream::current(device_));
  if (host) s.done.synchronize();
  check_well();
}

// Empty, or why the job has failed.
std::string NcclJob::look() {
  if (std::string why = bootstrap_.failure(); !why.empty()) return why;
  for (const cuda::nccl::Comm comm : comms_)
    if (const std::string why = cuda::nccl::failure(comm); !why.empty())
      return message("rank {}: nccl: {}", rank_, why);
  const Clock::time_point now = Clock::now();
  for (Slot& s : slots_) {
    if (!s.busy) continue;
    if (s.marked && s.done.done()) {
      s.busy = false;
    } else if (std::chrono::duration<double>(now - s.begun).count() > timeout_) {
      return message("{} did not end within {} s on rank {}: a rank did not come",
                     describe(s.number), timeout_, rank_);
    }
  }
  return "";
}

std::string NcclJob::describe(std::int64_t number) const {
  if (recorder_)
    for (const FlightEntry& e : recorder_->entries())
      if (e.number == number) return e.text();
  return "a collective";
}

void NcclJob::watch() {
  cuda::detail::use_device(device_.index);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kLook, [this] { return stopping_; })) {
    if (!failure_.empty()) continue;
    try {
      failure_ = look();
    } catch (const Error& e) {
      failure_ = e.what();
    }
    if (failure_.empty()) continue;
    if (recorder_ && !dump_folder_.empty()) recorder_->write(dump_folder_, rank_, failure_);
    // A thread between begin() and end() may be about to use a communicator. A thread blocked
    // inside NCCL returns only after the abort.
    wake_.wait_for(lock, kHandOver, [this] { return !calling_; });
    abort_all();
  }
}

// Ends kernels that wait for other ranks, and releases the threads that wait for those kernels.
void NcclJob::abort_all() {
  for (const cuda::nccl::Comm comm : comms_) {
    try {
      cuda::nccl::abort(comm);
    } catch (const Error&) {  // report the first failure
    }
  }
  comms_.clear();
}

void NcclJob::stop_watching() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void NcclJob::finish() {
  try {
    // The watcher still runs: it aborts collectives that wait for a lost rank.
    stream_.synchronize();
  } catch (const Error&) {  // called by the destructor; wait() has reported the error
  }
  stop_watching();
  try {
    for (const cuda::nccl::Comm comm : comms_) cuda::nccl::disconnect(comm);
  } catch (const Error&) {
  }
  comms_.clear();
}

void NcclJob::give_up() {
  stop_watching();
  abort_all();
}

}  // namespace weft::distributed

#endif
