#include "weft/distributed/nccl_job.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/distributed/deadline.h"

#if WEFT_WITH_CUDA

namespace weft::distributed {
namespace {

constexpr std::chrono::milliseconds kLook{50};
// Time for the rank's own thread to leave NCCL before its communicators are destroyed.
constexpr std::chrono::seconds kHandOver{1};
// Free memory below which the tensor cache is emptied before a connection: NCCL takes its buffers,
// some hundred MiB, from the device itself.
constexpr std::int64_t kRoomToConnect = std::int64_t{1} << 30;
// Most blocks of a kernel while other queues' kernels run.
constexpr int kBlocksBesideOthers = 32;
// A collective is taken over within microseconds, a connection within seconds.
constexpr std::chrono::milliseconds kSpin{2};  // before it sleeps
constexpr std::chrono::microseconds kPollSleep{200};

// What a layer waits for goes first. The data lane's collectives have the priority of compute.
std::vector<cuda::Stream> take_streams(Device device, int queues) {
  std::vector<cuda::Stream> streams;
  for (int q = 0; q < queues; ++q) {
    const bool waits = queues > 1 && q != queue_of(Lane::data, queues);
    streams.push_back(
        cuda::Stream::take(device, waits ? cuda::Priority::high : cuda::Priority::normal));
  }
  return streams;
}

// The result of a connection that failed, to which a thread of NCCL may still write.
void keep_for_ever(std::unique_ptr<cuda::nccl::Comm> made) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<cuda::nccl::Comm>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(made));
}

}  // namespace

NcclJob::NcclJob(Device device, World& bootstrap, const WorldOptions& options)
    : device_(device),
      bootstrap_(bootstrap),
      rank_(bootstrap.rank()),
      timeout_(options.timeout_s),
      last_resort_(options.last_resort_s),
      dump_folder_(options.dump_folder),
      streams_(take_streams(device, options.lanes)),
      watcher_([this] { watch(); }) {
  bootstrap_.set_answer([this](const std::string& question) { return answer(question); });
}

NcclJob::~NcclJob() {
  finish();
  for (cuda::Stream& stream : streams_) stream.give_back();
}

void NcclJob::synchronize() const {
  for (const cuda::Stream& stream : streams_) stream.synchronize();
}

void NcclJob::set_recorder(std::shared_ptr<FlightRecorder> recorder) {
  const std::lock_guard lock(mutex_);
  recorder_ = std::move(recorder);
}

std::string NcclJob::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NcclJob::check_well() const {
  std::string why = failure();
  // Another rank tells its failure before it aborts; the watcher may not have looked yet.
  if (why.empty()) why = bootstrap_.failure();
  check_system(why.empty(), "{}", why);
}

void NcclJob::fail(const std::string& why) {
  bootstrap_.fail(why);
  const std::string first = bootstrap_.failure();  // another rank's, perhaps
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  failure_ = first.empty() ? why : first;
  try_to_record_ends();
  aborted_in_flight_ =
      std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.busy; });
  if (recorder_ && !dump_folder_.empty()) recorder_->write(dump_folder_, rank_, failure_);
}

void NcclJob::add_group(const std::string& name, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  groups_[name] = ranks;
}

// begin(communicator) tells NCCL to make one and returns the one to wait for.
template <class Make>
cuda::nccl::Comm NcclJob::make(const std::string& group, Make begin) {
  cuda::detail::use_device(device_.index);
  const auto calls = [this](bool on) {
    const std::lock_guard lock(mutex_);
    if (on) check_system(failure_.empty(), "{}", failure_);
    calling_ = on;
  };
  const auto keep = [this](cuda::nccl::Comm comm) {
    const std::lock_guard lock(mutex_);
    if (comm && std::find(comms_.begin(), comms_.end(), comm) == comms_.end())
      comms_.push_back(comm);
  };
  const auto what = [&] { return "connecting group " + group; };
  std::int64_t free = 0, total = 0;
  cuda::rt::memory_info(free, total);
  if (free < kRoomToConnect) release_cached_memory(device_);
  auto made = std::make_unique<cuda::nccl::Comm>();
  calls(true);
  try {
    const cuda::nccl::Comm awaited = begin(*made);
    keep(awaited);
    wait_ready(awaited, what);
    check_well();
    keep(*made);
    if (*made && *made != awaited) wait_ready(*made, what);
    calls(false);
    return *made;
  } catch (const std::exception& e) {
    keep_for_ever(std::move(made));
    fail(e.what());
    calls(false);
    check_well();
    throw;
  }
}

cuda::nccl::Comm NcclJob::connect(const cuda::nccl::Id& id, int rank, int size) {
  const int queues = static_cast<int>(streams_.size());
  const int share = cuda::rt::multiprocessors(device_.index) / queues;
  const int blocks = queues > 1 ? std::clamp(share, 1, kBlocksBesideOthers) : 0;
  return make("world", [&](cuda::nccl::Comm& made) {
    return made = cuda::nccl::connect(id, rank, size, blocks);
  });
}

cuda::nccl::Comm NcclJob::split(cuda::nccl::Comm world, int color, int key,
                                const std::string& group) {
  check_well();
  synchronize();  // NCCL may deadlock when it splits a communicator that is in use
  check_well();
  return make(group, [&](cuda::nccl::Comm& made) {
    cuda::nccl::split(world, color, key, made);
    return world;
  });
}

// NCCL takes most calls over at once. Connecting waits for other ranks, and so may the first
// message between two.
void NcclJob::wait_ready(cuda::nccl::Comm comm, const std::function<std::string()>& what) {
  const Clock::time_point begun = Clock::now();
  for (;;) {
    check_well();  // the watcher may have aborted the communicator while this thread slept
    try {
      if (cuda::nccl::ready(comm)) return;
    } catch (const Error& e) {
      check_well();
      check_system(false, "rank {}: nccl: {}", rank_, e.what());
    }
    const Clock::duration waited = Clock::now() - begun;
    check_system(seconds(waited) <= timeout_,
                 "{} did not end within {} s on rank {}: a rank did not come", what(), timeout_,
                 rank_);
    if (waited < kSpin) {
      std::this_thread::yield();
      continue;
    }
    // What this call waits for may be a rank that an error of another group has stopped.
    if (const std::lock_guard lock(mutex_); failure_.empty())
      if (const std::string why = failure_of_comms(); !why.empty()) check_system(false, "{}", why);
    std::this_thread::sleep_for(kPollSleep);
  }
}

void NcclJob::begin(const Operation& op, int queue) {
  check_well();
  cuda::detail::use_device(device_.index);
  Slot& s = slot(op.number);
  if (s.number >= 0 && !s.done.done()) s.done.synchronize();  // all slots are in use
  if (const std::lock_guard lock(mutex_); s.busy) record_ends();
  ready_.record(cuda::Stream::current(device_));
  ready_.wait(stream_of(queue));
  const std::lock_guard lock(mutex_);
  check_system(failure_.empty(), "{}", failure_);
  calling_ = true;
  s.number = op.number;
  s.begun = Clock::now();
  s.busy = true;
  s.marked = false;
}

void NcclJob::end(const Operation& op, int queue) {
  const std::lock_guard lock(mutex_);
  calling_ = false;
  Slot& s = slot(op.number);
  s.done.record(stream_of(queue));
  s.marked = true;
  wake_.notify_all();
}

void NcclJob::join(const Operation& op, int queue, bool host) {
  check_well();
  cuda::detail::use_device(device_.index);
  const Slot& s = slot(op.number);
  if (s.number != op.number) return;  // the slot was reused: the operation has ended
  const cuda::Stream here = cuda::Stream::current(device_);
  s.done.wait(here);
  if (host) s.done.synchronize();
  check_well();
  used_on(op, queue, here.id());
}

void NcclJob::abandon(const Operation& op, int queue) { used_on(op, queue, -1); }

// The operation holds its tensors until it is joined. A block of the stream that has joined it can
// be reused there at once, without an event that the host would have to see pass. Not by
// record_stream(), which throws inside a capture of a graph.
void NcclJob::used_on(const Operation& op, int queue, int joined) {
  op.for_each_tensor([&](const Tensor& t) {
    if (t.numel() > 0 && t.storage()->stream != joined)  // threads share empty ones
      t.storage()->used_on.add(stream_of(queue).id());
  });
}

std::string NcclJob::failure_of_comms() const {
  for (const cuda::nccl::Comm comm : comms_)
    if (const std::string why = cuda::nccl::failure(comm); !why.empty())
      return message("rank {}: nccl: {}", rank_, why);
  return "";
}

// Empty, or why the job has failed; or a collective that hangs.
std::string NcclJob::look(std::optional<FlightEntry>& hanging) {
  if (std::string why = bootstrap_.failure(); !why.empty()) return why;
  // During a call the rank's own thread asks: NCCL allows only one at a time.
  if (!calling_)
    if (std::string why = failure_of_comms(); !why.empty()) return why;
  record_ends();
  const Slot* oldest = nullptr;
  for (const Slot& s : slots_)
    if (s.busy && s.marked && (!oldest || s.number < oldest->number)) oldest = &s;
  if (!oldest || seconds(Clock::now() - oldest->begun) <= timeout_ || !recorder_) return "";
  for (const FlightEntry& e : recorder_->entries())
    if (e.number == oldest->number) hanging = e;
  return hanging ? "" : "a collective hangs";
}

void NcclJob::record_ends() {
  for (Slot& s : slots_)
    if (s.busy && s.marked && s.done.done()) {
      s.busy = false;
      if (recorder_) recorder_->ended(s.number, true);
    }
}

// After an illegal address, for example, every call to the device fails.
void NcclJob::try_to_record_ends() {
  try {
    record_ends();
  } catch (const Error&) {  // the first failure is the one to report
  }
}

void NcclJob::watch() {
  cuda::detail::use_device(device_.index);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kLook, [this] { return stopping_; })) {
    if (failure_.empty()) {
      std::string why;
      std::optional<FlightEntry> hanging;
      try {
        why = look(hanging);
      } catch (const Error& e) {
        why = e.what();
      }
      if (why.empty() && !hanging) continue;
      lock.unlock();
      fail(hanging ? diagnosis(*hanging) : why);
      lock.lock();
    }
    // The rank's own thread leaves NCCL when it sees the failure, unless NCCL holds it: then it
    // returns only after the abort.
    wake_.wait_for(lock, kHandOver, [this] { return !calling_; });
    abort_all(lock);
  }
}

// Ends kernels that wait for other ranks, and releases the threads that wait for those kernels. It
// takes as long as the GPU needs, so others must be able to see meanwhile that the job has failed.
void NcclJob::abort_all(std::unique_lock<std::mutex>& lock) {
  const std::vector<cuda::nccl::Comm> comms = std::exchange(comms_, {});
  if (comms.empty()) return;
  const std::string why = failure_;
  lock.unlock();
  {
    const Deadline deadline(last_resort_, [&] {
      std::fprintf(stderr, "rank %d: NCCL did not abort within %g s after the job has failed: %s\n",
                   rank_, last_resort_, why.c_str());
    });
    const auto each = [&](auto f) {
      for (const cuda::nccl::Comm comm : comms) try {
          f(comm);
        } catch (const Error&) {  // report the first failure
        }
    };
    // To destroy one communicator NCCL waits for the kernels of all.
    if (cuda::nccl::can_revoke()) each(cuda::nccl::revoke);
    try {
      cuda::nccl::begin();
      each(cuda::nccl::abort);
      cuda::nccl::end();
    } catch (const Error&) {
    }
  }
  lock.lock();
}

void NcclJob::stop_watching() {
  bootstrap_.set_answer({});
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
    synchronize();
  } catch (const Error& e) {
    fail(message("rank {}: {}", rank_, e.what()));
  }
  stop_watching();
  // A rank that failed after its last collective does not take part in the end of a communicator.
  const std::string others = bootstrap_.failure();
  std::unique_lock lock(mutex_);
  if (failure_.empty()) failure_ = others;
  if (!failure_.empty()) return abort_all(lock);
  try_to_record_ends();
  try {
    for (const cuda::nccl::Comm comm : comms_) cuda::nccl::disconnect(comm);
  } catch (const Error&) {
  }
  comms_.clear();
}

void NcclJob::give_up() {
  stop_watching();
  std::unique_lock lock(mutex_);
  if (failure_.empty()) failure_ = message("rank {} has ended with an error", rank_);
  abort_all(lock);
}

}  // namespace weft::distributed

#endif
