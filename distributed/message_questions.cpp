// Finds the rank that a collective waits for, and what that rank is doing.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/flight_recorder.h"
#include "weft/distributed/message_job.h"

namespace weft::distributed {

std::vector<int> MessageQueue::needed() const {
  std::vector<int> list;
  const Channel& c = *op_->channel;
  for (int r = 0; r < c.size(); ++r)
    if (r != c.rank() && op_->needs(r)) list.push_back(c.ranks()[static_cast<std::size_t>(r)]);
  return list;
}

// Without ranks that have been asked already.
std::vector<int> MessageQueue::not_needed() const {
  std::vector<int> list;
  const std::vector<int> in_it = needed();
  for (int r = 0; r < messages_.size(); ++r)
    if (r != messages_.rank() && !peers_[static_cast<std::size_t>(r)].asked &&
        std::find(in_it.begin(), in_it.end(), r) == in_it.end())
      list.push_back(r);
  return list;
}

bool MessageQueue::is_elsewhere(const Peer& peer) const {
  return peer.answered && (peer.answer.group != group_ || peer.answer.call != call_);
}

bool MessageQueue::somebody_waits_elsewhere() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](const Peer& p) { return is_elsewhere(p) && p.answer.group >= 0; });
}

void MessageQueue::ask(const std::vector<int>& ranks) {
  for (const int r : ranks) {
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    peer.asked = true;
    peer.answered = false;
    job_.tell(r, {.queue = number_});
  }
  asked_at_ = Clock::now();
}

void MessageQueue::forget_answers() {
  for (Peer& p : peers_) p.asked = p.answered = false;
  asked_at_ = {};
}

bool MessageQueue::all_answered() const {
  for (std::size_t r = 0; r < peers_.size(); ++r)
    if (peers_[r].asked && !peers_[r].answered && !job_.places_[r].ended) return false;
  return true;
}

// What the queue that another rank asks about is doing; if nothing, what another one is.
Note MessageJob::answer_to(const Note& ask) const {
  const MessageQueue* busy = nullptr;
  for (const auto& q : queues_)
    if (q->op_ && (!busy || q->number_ == ask.queue)) busy = q.get();
  Note answer{.kind = Note::Kind::answer, .queue = ask.queue};
  if (busy) {
    answer.group = busy->group_;
    answer.call = busy->call_;
  }
  answer.set_text(where(busy ? busy->op_ : nullptr));
  return answer;
}

std::string MessageJob::where(const Operation* op) const {
  if (op) return "it is in " + describe(*op);
  const FlightRecorder* recorder = recorder_;
  const std::vector<FlightEntry> entries =
      recorder ? recorder->entries() : std::vector<FlightEntry>{};
  if (entries.empty()) return "it has called no collective";
  return "it has called nothing since " + entries.back().text();
}

void MessageJob::set_answer(World::Answer answer) {
  const std::lock_guard lock(answer_mutex_);
  answer_ = std::move(answer);
}

// Notes are sent and heard by the thread that runs collectives, or by idle().
std::vector<std::string> MessageJob::question_all(const std::string& question) {
  const auto size = static_cast<std::size_t>(messages_.size());
  {
    const std::lock_guard lock(heard_mutex_);
    question_ = question;
    replies_.assign(size, "");
    replies_[static_cast<std::size_t>(messages_.rank())] = "-";
  }
  const Clock::time_point begin = Clock::now();
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::lock_guard lock(heard_mutex_);
    const bool all = std::none_of(replies_.begin(), replies_.end(),
                                  [](const std::string& r) { return r.empty(); });
    if (all || seconds(Clock::now() - begin) > grace_) return replies_;
  }
}

void MessageJob::send_question() {
  const std::lock_guard lock(heard_mutex_);
  if (question_.empty()) return;
  Note note{.kind = Note::Kind::question};
  note.set_text(std::exchange(question_, {}));
  for (int r = 0; r < messages_.size(); ++r)
    if (places_[static_cast<std::size_t>(r)].ended)
      replies_[static_cast<std::size_t>(r)] = "it has ended";
    else if (r != messages_.rank())
      tell(r, note);
}

void MessageJob::take_reply(const Note& note) {
  const std::lock_guard lock(heard_mutex_);
  replies_[static_cast<std::size_t>(note.from)] = note.text;
}

std::string MessageQueue::diagnosis() const {
  std::string text;
  for (const int r : needed()) {
    const Peer& peer = peers_[static_cast<std::size_t>(r)];
    std::string why;
    if (job_.places_[static_cast<std::size_t>(r)].ended)
      why = "it has ended";
    else if (!peer.answered)
      why = "it does not answer, so it was stopped or has died";
    else if (is_elsewhere(peer))
      why = peer.answer.text;
    else
      continue;  // it waits, too
    text += message("{}rank {} did not come within {} s: {}", text.empty() ? "" : "; ", r,
                    job_.timeout_, why);
  }
  const std::vector<int> in_it = needed();
  for (int r = 0; r < messages_.size(); ++r) {
    const Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (peer.asked && !peer.answered && !job_.places_[static_cast<std::size_t>(r)].ended &&
        std::find(in_it.begin(), in_it.end(), r) == in_it.end())
      text += message("; rank {} does not answer, so it was stopped or has died", r);
  }
  if (text.empty()) text = message("every rank came, and nothing moved for {} s", job_.timeout_);
  return message("{}: {}", describe(*op_), text);
}

}  // namespace weft::distributed
