// The end of a job: each rank waits for the others, and of the ranks that end with one error one
// prints it.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "weft/core/error.h"
#include "weft/distributed/message_job.h"
#include "weft/distributed/operation.h"

namespace weft::distributed {
namespace {

using std::chrono::milliseconds;

// After a failure: time for the other ranks to report why they end.
constexpr milliseconds kLastWords{1000};
// Otherwise: time that an error waits for ranks that may fail the same way, and for notes in
// flight.
constexpr milliseconds kPatience{5000}, kMargin{1000};

}  // namespace

void MessageJob::give_up(const std::string& error) {
  words_ = error;
  giving_up_ = true;
}

std::vector<int> MessageJob::still_there() const {
  std::vector<int> list;
  for (int r = 0; r < messages_.size(); ++r)
    if (r != messages_.rank() && !places_[static_cast<std::size_t>(r)].ended) list.push_back(r);
  return list;
}

void MessageJob::finish(const Print& print) {
  tell_soon();
  // This rank has heard of the error through failure(), in a collective of another world.
  if (failure_.empty() && !words_.empty() && words_ == failure()) fell(words_, heard_culprit_);
  const bool was_well = failure_.empty();
  ended_ = true;
  if (giving_up_)
    end_ = !was_well && words_ == failure_ ? Note::End::job_failed : Note::End::own_error;
  Note note{.kind = Note::Kind::ended, .end = end_};
  note.set_text(words_);
  tell_all(note);
  const Clock::time_point begin = Clock::now();
  Clock::time_point patient = begin;
  MessageQueue& first = queue(0);
  first.forget_answers();
  bool has_spoken = !print || words_.empty();
  const auto speak = [&] {
    if (std::exchange(has_spoken, true)) return;
    if (const std::string line = own_line(begin); !line.empty()) print(line);
  };
  while (!still_there().empty()) {
    std::this_thread::sleep_for(milliseconds(1));
    listen();
    const Clock::time_point now = Clock::now();
    if (is_due(still_there(), now - begin)) speak();
    if (!failure_.empty()) {
      if (now - std::max(begin, failed_at_) > kLastWords) break;
    } else if (first.asked_at_ == Clock::time_point{}) {
      if (seconds(now - patient) > timeout_) first.ask(still_there());
    } else if (first.all_answered()) {  // they are still computing
      patient = now;
      first.forget_answers();
    } else if (seconds(now - first.asked_at_) > grace_) {
      lost_at_the_end();
    }
  }
  speak();
  if (failure_.empty()) return messages_.finish();
  // No rank is left in a collective whose wait() could throw this.
  if (was_well && !was_told_)
    std::fprintf(stderr, "rank %d: error: %s\n", messages_.rank(), failure_.c_str());
}

void MessageJob::lost_at_the_end() {
  // Other ranks that have ended detect this at the same time: the first of them reports it.
  const auto here = places_.begin() + messages_.rank();
  const bool is_first = std::none_of(places_.begin(), here, [](const Place& p) { return p.ended; });
  if (!is_first && seconds(Clock::now() - queue(0).asked_at_) < grace_ + seconds(kMargin)) return;
  std::string who;
  for (const int r : still_there())
    if (!queue(0).peers_[static_cast<std::size_t>(r)].answered)
      who += message("{}{}", who.empty() ? "" : ", ", r);
  const std::string why = message(
      "rank {} has ended; these ranks have not, and do not answer, so they were stopped or have "
      "died: {}",
      messages_.rank(), who);
  tell_failure(why, -1);
}

// Whether this rank knows enough to print or to stay silent. Its own error may be every rank's
// error. An error that stopped the job is printed by the first rank, or by the rank that caused it.
bool MessageJob::is_due(const std::vector<int>& others, Clock::duration waited) const {
  if (end_ == Note::End::own_error) return others.empty() || waited > kPatience;
  return std::none_of(others.begin(), others.end(),
                      [&](int r) { return r < messages_.rank() || r == culprit_; });
}

// Empty if another rank prints the same error.
std::string MessageJob::own_line(Clock::time_point begin) const {
  const bool own = end_ == Note::End::own_error;
  if (!own && culprit_ >= 0 && culprit_ != messages_.rank() &&
      !places_[static_cast<std::size_t>(culprit_)].words.empty())
    return "";
  Note cut;
  cut.set_text(words_);
  std::string who;
  int many = 0;
  for (int r = 0; r < messages_.size(); ++r) {
    const Place& place = places_[static_cast<std::size_t>(r)];
    if (r != messages_.rank()) {
      if (place.end != end_ || place.words.empty() || (own && place.words != cut.text)) continue;
      // A rank that ended this much earlier has not waited for this one.
      const Clock::duration waited = own ? kPatience + kMargin : kLastWords;
      if (r < messages_.rank() || begin - place.ended_at > waited) return "";
    }
    who += message("{}{}", many++ ? ", " : "", r);
  }
  if (!own || many == messages_.size()) return words_;
  return message("rank{} {}: {}", many > 1 ? "s" : "", who, words_);
}

}  // namespace weft::distributed
