#include "weft/distributed/comm_thread.h"

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

CommThread::CommThread(const WorldOptions& options, bool threaded) : link_(options.link) {
  if (threaded) thread_ = std::thread([this] { work(); });
}

CommThread::~CommThread() { stop(); }

void CommThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CommThread::submit(const std::shared_ptr<Operation>& op) {
  op->thread = this;
  op->called = Clock::now();
  const std::int64_t number = recorder_.called(*op);
  if (!thread_.joinable()) {
    run(*op, number);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({op, number});
  }
  wake_.notify_one();
}

void CommThread::work() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    run(*job.op, job.number);
  }
}

void CommThread::run(Operation& op, std::int64_t number) {
  op.started = Clock::now();
  recorder_.started(number);
  try {
    op.channel->run(op);
  } catch (...) {
    op.error = std::current_exception();
  }
  const std::int64_t sent = op.bytes_sent(op.channel->rank(), op.channel->size());
  if (!op.error && (link_.bytes_per_s > 0 || link_.latency_s > 0) && op.channel->size() > 1) {
    const double least =
        link_.latency_s +
        (link_.bytes_per_s > 0 ? static_cast<double>(sent) / link_.bytes_per_s : 0.0);
    std::this_thread::sleep_until(op.started + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(least)));
  }
  op.ended = Clock::now();
  recorder_.ended(number, !op.error);
  {
    const std::lock_guard lock(mutex_);
    ++stats_.calls;
    stats_.bytes_sent += sent;
    stats_.busy_s += seconds(op.ended - op.started);
  }
  op.done.store(1, std::memory_order_release);
  op.done.notify_all();
}

void CommThread::waited(double s) {
  const std::lock_guard lock(mutex_);
  stats_.waiting_s += s;
}

CommStats CommThread::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace weft::distributed
