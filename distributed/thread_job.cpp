#include "weft/distributed/thread_job.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "weft/distributed/flight_recorder.h"

namespace weft::distributed {
namespace {

// "[0, 1] [2, 3]"
std::string list(const RankLists& lists) {
  std::string text;
  for (const std::vector<int>& ranks : lists) {
    text += text.empty() ? "[" : " [";
    for (std::size_t i = 0; i < ranks.size(); ++i) text += message("{}{}", i ? ", " : "", ranks[i]);
    text += "]";
  }
  return text;
}

}  // namespace

Job::Job(int ranks, const WorldOptions& options)
    : options_(options),
      left_(static_cast<std::size_t>(ranks)),
      recorders_(static_cast<std::size_t>(ranks)),
      answers_(static_cast<std::size_t>(ranks)) {}

void Job::fail(const std::string& why, Fault fault) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    why_ = why;
    fault_ = fault;
    // A user error needs no dump.
    if (!options_.dump_folder.empty() && fault != Fault::user)
      for (std::size_t r = 0; r < recorders_.size(); ++r)
        if (recorders_[r]) recorders_[r]->write(options_.dump_folder, static_cast<int>(r), why);
    failed_.store(true, std::memory_order_release);
  }
  // Log it: a rank that computes forever would keep the job from ending and the reason from being
  // seen.
  log_line(why);
  wake_all();
}

void Job::leave(int rank) {
  left_[static_cast<std::size_t>(rank)].store(true, std::memory_order_release);
  wake_all();
}

void Job::wake_all() {
  const std::lock_guard lock(mutex_);
  for (const Called& g : groups_)
    for (const auto& r : g.rendezvous)
      if (r) r->wake();
}

void Job::set_answer(int rank, World::Answer answer) {
  const std::lock_guard lock(answers_mutex_);
  answers_[static_cast<std::size_t>(rank)] = std::move(answer);
}

std::vector<std::string> Job::ask(const std::string& question) {
  const std::lock_guard lock(answers_mutex_);
  std::vector<std::string> all;
  for (std::size_t r = 0; r < answers_.size(); ++r)
    all.push_back(answers_[r]                     ? answers_[r](question)
                  : has_left(static_cast<int>(r)) ? "it has ended"
                                                  : "it has no world of its GPU");
  return all;
}

void Job::add_recorder(int rank, std::shared_ptr<const FlightRecorder> recorder) {
  const std::lock_guard lock(mutex_);
  recorders_[static_cast<std::size_t>(rank)] = std::move(recorder);
}

std::shared_ptr<Rendezvous> Job::rendezvous(int rank, const GroupCall& call) {
  const std::lock_guard lock(mutex_);
  const auto number = static_cast<std::size_t>(call.number);
  if (number >= groups_.size()) groups_.resize(number + 1);
  Called& g = groups_[number];
  if (g.rank < 0) g = {rank, call, std::vector<std::shared_ptr<Rendezvous>>(call.lists->size())};
  check(g.call.name == call.name && *g.call.lists == *call.lists,
        "group: all ranks must make the same groups in the same order: rank {} made {} {}, rank {} "
        "{} {}",
        g.rank, g.call.name, list(*g.call.lists), rank, call.name, list(*call.lists));
  check(g.call.lane == call.lane,
        "group {}: all ranks must make it in the same lane: rank {} in {}, rank {} in {}",
        call.name, g.rank, name(g.call.lane), rank, name(call.lane));
  if (call.list < 0) return nullptr;
  std::shared_ptr<Rendezvous>& own = g.rendezvous[static_cast<std::size_t>(call.list)];
  if (!own) own = std::make_shared<Rendezvous>(*this, call.ranks());
  return own;
}

Rendezvous::Rendezvous(Job& job, std::vector<int> ranks)
    : job_(job),
      ranks_(std::move(ranks)),
      here_(ranks_.size()),
      visits_(ranks_.size()),
      reads_(ranks_.size()),
      mailboxes_(ranks_.size() * ranks_.size()) {}

void Rendezvous::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

template <class Missing>
std::string Rendezvous::why_not(const Operation& op, Missing missing, bool timed_out) const {
  std::string who;
  int many = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (missing(static_cast<int>(r)) && (timed_out || job_.has_left(ranks_[r])))
      who += weft::message("{}{}", many++ ? ", " : "", ranks_[r]);
  if (many == 0) return "";
  const char* ranks = many > 1 ? "ranks" : "rank";
  if (timed_out)
    return weft::message("{}: {} {} did not come within {} s", describe(op), ranks, who,
                         job_.timeout_s());
  return weft::message("{}: {} {} ended before", describe(op), ranks, who);
}

// Waits until ready(), with the lock held. missing(r): whether it waits for group rank r.
template <class Ready, class Missing>
void Rendezvous::wait(std::unique_lock<std::mutex>& lock, const Operation& op, Ready ready,
                      Missing missing) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                            std::chrono::duration<double>(job_.timeout_s()));
  bool timed_out = false;
  while (!ready()) {
    if (job_.failed()) throw job_.failure();
    if (const std::string why = why_not(op, missing, timed_out); !why.empty()) {
      lock.unlock();
      job_.fail(why, Fault::system);
      lock.lock();
      continue;
    }
    ++asleep_;
    timed_out = changed_.wait_until(lock, deadline) == std::cv_status::timeout;
    --asleep_;
  }
}

void Rendezvous::arrive(int rank, const Operation& op, bool reads) {
  const auto me = static_cast<std::size_t>(rank);
  std::unique_lock lock(mutex_);
  if (reads_[me]) {
    reads_[me] = false;
    if (--reading_ == 0 && asleep_) changed_.notify_all();
  }
  if (job_.failed()) throw job_.failure();
  // If it arrives again in the same operation, peers may be reading this entry.
  if (here_[me] != &op) here_[me] = &op;
  ++visits_[me];
  const std::int64_t round = round_.load(std::memory_order_relaxed);
  if (++arrived_ == static_cast<int>(ranks_.size())) {
    arrived_ = 0;
    if (reads) {
      reading_ = static_cast<int>(ranks_.size());
      reads_.assign(ranks_.size(), true);
    }
    round_.store(round + 1, std::memory_order_release);
    if (asleep_) changed_.notify_all();
    return;
  }
  // The others usually arrive soon: yield to them first, because they may need this processor.
  lock.unlock();
  constexpr int kLooks = 20;
  for (int i = 0; i < kLooks; ++i) {
    if (round_.load(std::memory_order_acquire) != round) return;
    sched_yield();
  }
  lock.lock();
  wait(
      lock, op, [&] { return round_.load(std::memory_order_relaxed) != round; },
      [&](int r) { return visits_[static_cast<std::size_t>(r)] < visits_[me]; });
}

void Rendezvous::leave(int rank, const Operation& op) {
  const auto me = static_cast<std::size_t>(rank);
  std::unique_lock lock(mutex_);
  if (reads_[me]) {
    reads_[me] = false;
    if (--reading_ == 0) changed_.notify_all();
  }
  const auto wait_for = [&](auto over) {
    ++asleep_;
    changed_.wait(lock, over);
    --asleep_;
  };
  wait_for([&] { return reading_ == 0; });
  here_[me] = nullptr;
  for (const Transfer& t : op.sends) {
    Mailbox& box = mailbox(rank, t.rank);
    wait_for([&] { return !box.being_taken || box.messages[0].sender != &op; });
    std::erase_if(box.messages, [&](const Message& m) { return m.sender == &op; });
  }
}

bool Rendezvous::Mailbox::holds(const Operation& op) const {
  return std::any_of(messages.begin(), messages.end(),
                     [&](const Message& m) { return m.sender == &op; });
}

void Rendezvous::post_sends(int rank, const Operation& op) {
  std::unique_lock lock(mutex_);
  if (job_.failed()) throw job_.failure();
  for (const Transfer& t : op.sends) mailbox(rank, t.rank).messages.push_back({&op, &t});
  if (asleep_ && !op.sends.empty()) changed_.notify_all();
}

Rendezvous::Message Rendezvous::begin_receive(int rank, const Operation& op,
                                              const std::vector<char>& received) {
  std::unique_lock lock(mutex_);
  if (job_.failed()) throw job_.failure();
  std::size_t first = 0;
  // Of one sender, the first in the list that is not received is the oldest message.
  const auto has_come = [&] {
    for (first = 0; first < op.receives.size(); ++first)
      if (!received[first] && !mailbox(op.receives[first].rank, rank).messages.empty()) return true;
    return false;
  };
  wait(lock, op, has_come, [&](int r) {
    for (std::size_t i = 0; i < op.receives.size(); ++i)
      if (!received[i] && op.receives[i].rank == r) return true;
    return false;
  });
  Mailbox& box = mailbox(op.receives[first].rank, rank);
  box.being_taken = true;
  Message message = box.messages[0];
  message.receive = first;
  return message;
}

void Rendezvous::end_receive(int rank, int from) {
  const std::lock_guard lock(mutex_);
  Mailbox& box = mailbox(from, rank);
  box.messages.erase(box.messages.begin());
  box.being_taken = false;
  if (asleep_) changed_.notify_all();
}

void Rendezvous::wait_received(int rank, const Operation& op) {
  std::unique_lock lock(mutex_);
  const auto lacks = [&](int r) { return mailbox(rank, r).holds(op); };
  const auto received = [&] {
    return std::none_of(op.sends.begin(), op.sends.end(),
                        [&](const Transfer& t) { return lacks(t.rank); });
  };
  wait(lock, op, received, lacks);
  if (!op.sends.empty() && job_.failed()) throw job_.failure();
}

}  // namespace weft::distributed
