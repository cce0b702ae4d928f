#include "weft/distributed/message_job.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/flight_recorder.h"

namespace weft::distributed {
namespace {

// Seconds that a rank may keep computing after the job has failed.
constexpr double kLastResort = 30;

}  // namespace

MessageJob::MessageJob(std::unique_ptr<Messages> messages, const WorldOptions& options)
    : own_messages_(std::move(messages)),
      messages_(*own_messages_),
      timeout_(options.timeout_s),
      grace_(std::clamp(options.timeout_s / 2, 0.5, 3.0)),
      dump_folder_(options.dump_folder),
      places_(static_cast<std::size_t>(messages_.size())) {
  for (int q = 0; q < options.lanes; ++q)
    queues_.push_back(std::make_unique<MessageQueue>(*this, q));
}

std::string MessageJob::failure() const {
  const std::lock_guard lock(heard_mutex_);
  return heard_;
}

void MessageJob::fail_soon(const std::string& why) {
  const std::lock_guard lock(heard_mutex_);
  if (soon_.empty() && why != heard_) soon_ = why;
}

void MessageJob::hear_of(const std::string& why, int culprit) {
  const std::lock_guard lock(heard_mutex_);
  if (!heard_.empty()) return;
  heard_ = why;
  heard_culprit_ = culprit;
}

void MessageJob::tell_soon() {
  std::string why;
  {
    const std::lock_guard lock(heard_mutex_);
    why = soon_;
  }
  if (why.empty() || !failure_.empty()) return;
  tell_failure(why, -1);
}

void MessageJob::look_around() {
  listen();
  tell_soon();
  send_question();
}

void MessageJob::listen() {
  Note note;
  while (hear(note)) {
    Place& place = places_[static_cast<std::size_t>(note.from)];
    switch (note.kind) {
      case Note::Kind::ask:
        tell(note.from, answer_to(note));
        break;
      case Note::Kind::answer: {
        MessageQueue::Peer& peer = queue(note.queue).peers_[static_cast<std::size_t>(note.from)];
        peer.answered = true;
        peer.answer = note;
        break;
      }
      case Note::Kind::question: {
        Note reply{.kind = Note::Kind::reply};
        const std::lock_guard lock(answer_mutex_);
        reply.set_text(answer_ ? answer_(note.text) : "it has no world of its GPU");
        tell(note.from, reply);
        break;
      }
      case Note::Kind::reply:
        take_reply(note);
        break;
      case Note::Kind::failed:
        was_told_ = was_told_ || failure_.empty();
        fell(note.text, note.culprit);
        break;
      case Note::Kind::ended:
        place.ended = true;
        place.end = note.end;
        place.words = note.text;
        place.ended_at = Clock::now();
        if (note.end == Note::End::own_error)
          hear_of(message("rank {} has ended with an error", note.from), note.from);
        break;
      case Note::Kind::lost:
        if (std::exchange(place.ended, true)) break;  // it had ended before it hung up
        place.ended_at = Clock::now();
        lost(note);
        break;
    }
  }
}

void MessageJob::lost(const Note& note) {
  if (!failure_.empty()) return;
  const std::string who = message("rank {} was lost: {}", note.from, note.text);
  const Operation* op = nullptr;
  for (const auto& q : queues_)
    if (q->op_ && (!op || q->waits_for(note.from))) op = q->op_;
  tell_failure(
      op ? message("{}: {}", describe(*op), who)
         : message("{}; rank {} was in no collective: {}", who, messages_.rank(), where(nullptr)),
      -1);
}

void MessageJob::tell(int rank, const Note& note) {
  const std::lock_guard lock(messages_mutex_);
  messages_.tell(rank, note);
}

bool MessageJob::hear(Note& note) {
  const std::lock_guard lock(messages_mutex_);
  return messages_.hear(note);
}

void MessageJob::tell_all(const Note& note) {
  for (int r = 0; r < messages_.size(); ++r)
    if (r != messages_.rank()) tell(r, note);
}

void MessageJob::fell(const std::string& why, int culprit) {
  if (!failure_.empty()) return;
  culprit_ = culprit;
  failed_at_ = Clock::now();
  messages_.doom();
  failure_ = why;
  hear_of(why, culprit);
  const FlightRecorder* const recorder = recorder_;
  if (recorder && !dump_folder_.empty()) recorder->write(dump_folder_, messages_.rank(), why);
}

void MessageJob::tell_failure(const std::string& why, int culprit) {
  Note note{.kind = Note::Kind::failed, .culprit = culprit};
  note.set_text(why);
  tell_all(note);
  fell(why, culprit);
}

void MessageJob::fail_now(const std::string& why, int culprit) {
  if (failure_.empty()) tell_failure(why, culprit);
  throw Error(failure_, Fault::system);
}

void MessageJob::fail(const std::string& why, int culprit) {
  const std::lock_guard lock(mutex_);
  fail_now(why, culprit);
}

void MessageJob::idle() {
  const std::lock_guard lock(mutex_);
  try {
    look_around();
  } catch (const Error& e) {
    fell(e.what());
  }
  if (failure_.empty() || seconds(Clock::now() - failed_at_) < kLastResort) return;
  std::fprintf(stderr, "rank %d: still computing %g s after the job has failed: %s\n",
               messages_.rank(), kLastResort, failure_.c_str());
  messages_.abort(1);
}

}  // namespace weft::distributed
