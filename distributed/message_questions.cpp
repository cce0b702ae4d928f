// Finds the rank that a collective waits for, and what that rank is doing.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/flight_recorder.h"
#include "weft/distributed/message_job.h"

namespace weft::distributed {

std::vector<int> MpiJob::needed() const {
  std::vector<int> list;
  const Channel& c = *op_->channel;
  const bool everybody = !is_message(op_->kind);
  for (int r = 0; r < c.size(); ++r)
    if (r != c.rank() && (everybody || r == op_->to || r == op_->from))
      list.push_back(c.ranks()[static_cast<std::size_t>(r)]);
  return list;
}

// Without ranks that have been asked already.
std::vector<int> MpiJob::not_needed() const {
  std::vector<int> list;
  const std::vector<int> in_it = needed();
  for (int r = 0; r < messages_.size(); ++r)
    if (r != messages_.rank() && !places_[static_cast<std::size_t>(r)].asked &&
        std::find(in_it.begin(), in_it.end(), r) == in_it.end())
      list.push_back(r);
  return list;
}

bool MpiJob::is_elsewhere(const Place& place) const {
  return place.answered && (place.answer.group != group_ || place.answer.call != call_);
}

bool MpiJob::somebody_waits_elsewhere() const {
  return std::any_of(places_.begin(), places_.end(),
                     [&](const Place& p) { return is_elsewhere(p) && p.answer.group >= 0; });
}

void MpiJob::ask(const std::vector<int>& ranks) {
  for (const int r : ranks) {
    Place& place = places_[static_cast<std::size_t>(r)];
    place.asked = true;
    place.answered = false;
    messages_.tell(r, {});
  }
  asked_at_ = Clock::now();
}

void MpiJob::forget_answers() {
  for (Place& p : places_) p.asked = p.answered = false;
  asked_at_ = {};
}

bool MpiJob::all_answered() const {
  return std::all_of(places_.begin(), places_.end(),
                     [](const Place& p) { return !p.asked || p.answered || p.ended; });
}

std::string MpiJob::where() const {
  if (op_) return "it is in " + describe(*op_);
  const FlightRecorder* recorder = recorder_;
  const std::vector<FlightEntry> entries =
      recorder ? recorder->entries() : std::vector<FlightEntry>{};
  if (entries.empty()) return "it has called no collective";
  return "it has called nothing since " + entries.back().text();
}

void MpiJob::set_answer(World::Answer answer) {
  const std::lock_guard lock(answer_mutex_);
  answer_ = std::move(answer);
}

// Notes are sent and heard by the thread that runs collectives, or by idle().
std::vector<std::string> MpiJob::question_all(const std::string& question) {
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

void MpiJob::send_question() {
  const std::lock_guard lock(heard_mutex_);
  if (question_.empty()) return;
  Note note{.kind = Note::Kind::question};
  note.set_text(std::exchange(question_, {}));
  for (int r = 0; r < messages_.size(); ++r)
    if (places_[static_cast<std::size_t>(r)].ended)
      replies_[static_cast<std::size_t>(r)] = "it has ended";
    else if (r != messages_.rank())
      messages_.tell(r, note);
}

void MpiJob::take_reply(const Note& note) {
  const std::lock_guard lock(heard_mutex_);
  replies_[static_cast<std::size_t>(note.from)] = note.text;
}

std::string MpiJob::diagnosis() const {
  std::string text;
  for (const int r : needed()) {
    const Place& place = places_[static_cast<std::size_t>(r)];
    std::string why;
    if (place.ended)
      why = "it has ended";
    else if (!place.answered)
      why = "it does not answer, so it was stopped or has died";
    else if (is_elsewhere(place))
      why = place.answer.text;
    else
      continue;  // it waits, too
    text += message("{}rank {} did not come within {} s: {}", text.empty() ? "" : "; ", r, timeout_,
                    why);
  }
  const std::vector<int> in_it = needed();
  for (int r = 0; r < messages_.size(); ++r) {
    const Place& place = places_[static_cast<std::size_t>(r)];
    if (place.asked && !place.answered && !place.ended &&
        std::find(in_it.begin(), in_it.end(), r) == in_it.end())
      text += message("; rank {} does not answer, so it was stopped or has died", r);
  }
  if (text.empty()) text = message("every rank came, and nothing moved for {} s", timeout_);
  return message("{}: {}", describe(*op_), text);
}

}  // namespace weft::distributed
