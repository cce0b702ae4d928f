#include "weft/distributed/message_queue.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/distributed/message_job.h"

namespace weft::distributed {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A poll costs about 100 ns. Spin first, then yield the processor, then sleep.
constexpr int kSpins = 50, kYields = 400, kShortSleeps = 100, kPollsAWatch = 16;
constexpr microseconds kShortSleep{20}, kLongSleep{200};
// A message from a rank that has ended is already in flight.
constexpr milliseconds kOnTheWay{300};
constexpr milliseconds kGap{1000};

}  // namespace

MessageQueue::MessageQueue(MessageJob& job, int number)
    : job_(job),
      messages_(job.messages()),
      number_(number),
      peers_(static_cast<std::size_t>(messages_.size())) {}

void MessageQueue::enter(const Operation& op, std::int64_t group, std::int64_t call) {
  const std::lock_guard lock(job_.mutex_);
  check_system(job_.failure_.empty(), "{}", job_.failure_);
  check_system(!job_.ended_, "{}: the world has ended", describe(op));
  op_ = &op;
  group_ = group;
  call_ = call;
  entered_ = moved_at_ = watched_at_ = Clock::now();
  if (asked_at_ != Clock::time_point{}) forget_answers();
}

void MessageQueue::leave() {
  const std::lock_guard lock(job_.mutex_);
  op_ = nullptr;
}

void MessageQueue::abandon(const Operation& op, const std::string& why) {
  const std::lock_guard lock(job_.mutex_);
  {
    const std::lock_guard messages(job_.messages_mutex_);
    messages_.abandon(number_);
  }
  op.for_each_tensor([&](const Tensor& t) { job_.abandoned_.push_back(t); });
  op_ = nullptr;
  // An error of this rank's own: operations of other queues must not wait for it.
  if (job_.failure_.empty()) job_.tell_failure(why, messages_.rank());
}

char* MessageQueue::staging(std::int64_t bytes) {
  if (!staging_.defined() || staging_.numel() < bytes) {
    const CategoryScope scope(Category::communication);
    staging_ = Tensor();
    staging_ = Tensor::empty({bytes}, DType::u8);
  }
  return static_cast<char*>(staging_.raw());
}

int MessageQueue::tag(Lane lane, std::int64_t group, std::int64_t call) const {
  return messages_.tag(lane, group, call);
}

void MessageQueue::send(int to, int tag, const void* data, std::int64_t bytes, int batch) {
  const std::lock_guard lock(job_.messages_mutex_);
  messages_.send(to, tag, data, bytes, number_ * Messages::kBatches + batch);
}

void MessageQueue::receive(int from, int tag, void* data, std::int64_t bytes, int batch) {
  const std::lock_guard lock(job_.messages_mutex_);
  messages_.receive(from, tag, data, bytes, number_ * Messages::kBatches + batch);
}

int MessageQueue::under_way(int batch) const {
  const std::lock_guard lock(job_.messages_mutex_);
  return messages_.under_way(number_ * Messages::kBatches + batch);
}

int MessageQueue::under_way() const {
  const std::lock_guard lock(job_.messages_mutex_);
  int sum = 0;
  for (int b = 0; b < Messages::kBatches; ++b)
    sum += messages_.under_way(number_ * Messages::kBatches + b);
  return sum;
}

bool MessageQueue::is_in_trouble() const {
  const std::lock_guard lock(job_.messages_mutex_);
  return !messages_.trouble(number_).empty();
}

bool MessageQueue::waits_for(int rank) const {
  const std::lock_guard lock(job_.messages_mutex_);
  return messages_.waits_for(number_, rank);
}

// Polls for all queues; true if a message of this one has moved since the last look.
bool MessageQueue::progress() {
  const std::lock_guard lock(job_.messages_mutex_);
  messages_.progress();
  return messages_.has_moved(number_);
}

void MessageQueue::between() {
  if (progress()) {
    without_ = 0;
    moved_ = true;
    return;
  }
  if (++without_ < kSpins) return;
  if (without_ % kPollsAWatch == 0) {
    const std::lock_guard lock(job_.mutex_);
    watch();
  }
  if (without_ < kYields)
    sched_yield();
  else
    std::this_thread::sleep_for(without_ < kYields + kShortSleeps ? kShortSleep : kLongSleep);
}

void MessageQueue::watch() {
  job_.look_around();
  check_system(job_.failure_.empty(), "{}", job_.failure_);
  if (job_.giving_up_)
    job_.fail_now(message("rank {} has ended with an error", messages_.rank()), messages_.rank());
  const Clock::time_point now = Clock::now();
  // Polls are at most about 3 ms apart. After a longer gap this process, and probably its peers,
  // had been stopped: extend the timeout by the gap.
  if (now - watched_at_ > kGap) moved_at_ += now - std::max(watched_at_, entered_);
  watched_at_ = now;
  if (moved_) moved_at_ = now;
  moved_ = false;
  std::string trouble;
  if (is_in_trouble() && now - moved_at_ > kOnTheWay) {
    const std::lock_guard lock(job_.messages_mutex_);
    trouble = messages_.trouble(number_);
  }
  if (!trouble.empty()) job_.fail_now(message("{}: {}", describe(*op_), trouble));
  check_peers(now);
  if (seconds(now - moved_at_) < job_.timeout_) return;
  if (asked_at_ == Clock::time_point{}) {
    ask(needed());
  } else if (all_answered() || seconds(now - asked_at_) > job_.grace_) {
    // A rank that waits in another call may wait for a rank that this operation does not need.
    if (const std::vector<int> others = not_needed(); somebody_waits_elsewhere() && !others.empty())
      ask(others);
    else
      job_.fail_now(diagnosis());
  }
}

void MessageQueue::check_peers(Clock::time_point now) {
  for (int r = 0; r < messages_.size(); ++r) {
    const MessageJob::Place& place = job_.places_[static_cast<std::size_t>(r)];
    // This operation may not need that rank, or may have its data: ranks leave a collective one by
    // one.
    if (!place.ended || now - std::max({place.ended_at, entered_, moved_at_}) <= kOnTheWay)
      continue;
    moved_ = progress() || moved_;
    if (moved_ || !waits_for(r)) continue;
    if (place.end == Note::End::own_error)
      job_.fail_now(message("rank {} has ended with an error", r), r);
    job_.fail_now(message("rank {} has ended, and rank {} waits for it in {}", r, messages_.rank(),
                          describe(*op_)));
  }
}

}  // namespace weft::distributed
