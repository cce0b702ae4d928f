#include "weft/distributed/comm_thread.h"

#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/long_work.h"

namespace weft::distributed {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kIdle{10};
// Preallocated operations. The number in flight depends on timing: without a reserve, a late step
// could need one more than all before it and allocate.
constexpr int kOperations = 16;

}  // namespace

CommThread::CommThread(int rank, int ranks, const WorldOptions& options,
                       std::shared_ptr<FlightRecorder> recorder, bool threaded,
                       std::function<void()> idle)
    : rank_(rank),
      ranks_(ranks),
      threaded_(threaded),
      link_(options.link),
      data_link_(options.data_link.value_or(options.link)),
      dump_folder_(options.dump_folder),
      idle_(std::move(idle)),
      recorder_(std::move(recorder)) {
  for (int i = 0; i < kOperations; ++i) recycle(add_operation());
  if (idle_) start();
}

void CommThread::start() {
  thread_ = rank_thread(rank_, "world", "the collectives", [this] { work(); });
}

CommThread::~CommThread() { stop(); }

void CommThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) return thread_.join();
  std::unique_lock lock(mutex_);
  while (first_) make_next(lock);
}

Operation& CommThread::take() {
  if (abandoned_ > 0)
    for (const auto& op : operations_)
      if (op->channel && !op->held && op->done.load(std::memory_order_acquire)) {
        --abandoned_;
        recycle(*op);
      }
  if (!free_) recycle(add_operation());
  Operation& op = *free_;
  free_ = std::exchange(op.next, nullptr);
  op.held = true;
  return op;
}

Operation& CommThread::add_operation() {
  Operation& op = *operations_.emplace_back(std::make_unique<Operation>());
  op.out_count.reserve(static_cast<std::size_t>(ranks_));
  op.in_count.reserve(static_cast<std::size_t>(ranks_));
  return op;
}

void CommThread::give_back(Operation& op) {
  op.held = false;
  if (op.done.load(std::memory_order_acquire))
    recycle(op);
  else
    ++abandoned_;
}

// Runs on the calling thread, so that its allocator gets the blocks of the tensors back.
void CommThread::recycle(Operation& op) {
  if (op.enqueued && !op.joined) op.channel->abandon(op);
  op.out = {};
  op.in = {};
  op.sends.clear();
  op.receives.clear();
  op.channel.reset();
  op.out_count.clear();
  op.in_count.clear();
  op.stream.reset();
  op.reduce = Reduce::sum;
  op.root = -1;
  op.failed = op.enqueued = op.joined = false;
  op.next = free_;
  free_ = &op;
}

void CommThread::submit(Operation& op, bool wake) {
  if (threaded_ && wake && !thread_.joinable()) start();
  op.done.store(false, std::memory_order_relaxed);
  op.number = recorder_->called(op);
  std::unique_lock lock(mutex_);
  (first_ ? last_->next : first_) = &op;
  last_ = &op;
  if (!threaded_)
    make_next(lock);
  else if (!running_ && wake)
    wake_.notify_one();
}

void CommThread::wait(Operation& op) {
  recorder_->waited(op.number);
  if (!op.done.load(std::memory_order_acquire)) {
    const auto begin = Clock::now();
    std::unique_lock lock(mutex_);
    while (!op.done.load(std::memory_order_relaxed)) {
      if (!running_) {
        make_next(lock);
        continue;
      }
      waiting_ = true;
      finished_.wait(lock);
      waiting_ = false;
    }
    stats_of(op).waiting_s += seconds(Clock::now() - begin);
    if (first_ && !running_) wake_.notify_one();
  }
  if (!op.failed) {
    for_program([&] { op.channel->finish(op); });
    op.joined = true;
    return;
  }
  has_thrown_ = true;
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    why = failure_;
  }
  throw Error(why, Fault::system);
}

void CommThread::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto ready = [this] { return first_ ? !running_ : stopping_; };
    if (idle_)
      while (!wake_.wait_for(lock, kIdle, ready)) look_around(lock);
    else
      wake_.wait(lock, ready);
    if (!first_) return;
    make_next(lock);
  }
}

void CommThread::look_around(std::unique_lock<std::mutex>& lock) {
  if (running_) return;
  running_ = true;  // no collective starts meanwhile
  lock.unlock();
  idle_();
  lock.lock();
  running_ = false;
  if (waiting_) finished_.notify_one();
}

// Called with the lock held; releases it while the collective runs.
void CommThread::make_next(std::unique_lock<std::mutex>& lock) {
  Operation& op = *first_;
  first_ = std::exchange(op.next, nullptr);
  running_ = true;
  const std::string failure = failure_;
  lock.unlock();
  const bool well = run(op, failure);
  lock.lock();
  running_ = false;
  op.failed = !well;
  CommStats& stats = stats_of(op);
  ++stats.calls;
  if (well) stats.bytes_sent += op.bytes_sent(op.channel->rank(), op.channel->size());
  stats.busy_s += seconds(op.ended - op.started);
  // From here on the operation belongs to the caller.
  op.done.store(true, std::memory_order_release);
  if (waiting_) finished_.notify_one();
}

void CommThread::carry_out(Operation& op) {
  op.channel->run(op);
  const SimulatedLink& link = op.lane == Lane::data ? data_link_ : link_;
  const int size = op.channel->size();
  if (size == 1 || (link.bytes_per_s == 0 && link.latency_s == 0)) return;
  double least = link.latency_s;
  if (link.bytes_per_s > 0)
    least += static_cast<double>(op.bytes_sent(op.channel->rank(), size)) / link.bytes_per_s;
  std::this_thread::sleep_until(op.started + std::chrono::duration_cast<Clock::duration>(
                                                 std::chrono::duration<double>(least)));
}

bool CommThread::run(Operation& op, const std::string& failure) {
  op.started = op.ended = Clock::now();
  if (!failure.empty()) {
    recorder_->ended(op.number, false);
    return false;
  }
  recorder_->started(op.number);
  std::string error;
  try {
    carry_out(op);
  } catch (const std::exception& e) {
    error = e.what();
    if (error.empty()) error = describe(op) + " failed";
  }
  op.ended = Clock::now();
  if (op.enqueued)
    recorder_->enqueued(op.number);
  else
    recorder_->ended(op.number, error.empty());
  if (error.empty()) return true;
  if (!dump_folder_.empty()) recorder_->write(dump_folder_, rank_, error);
  const std::lock_guard lock(mutex_);
  failure_ = error;
  return false;
}

CommStats CommThread::stats(Lane lane) const {
  const std::lock_guard lock(mutex_);
  return stats_[static_cast<int>(lane)];
}

}  // namespace weft::distributed
