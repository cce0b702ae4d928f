#include "weft/distributed/message_job.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/distributed/flight_recorder.h"

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
// Seconds that a rank may keep computing after the job has failed.
constexpr double kLastResort = 30;

}  // namespace

MpiJob::MpiJob(std::unique_ptr<Messages> messages, const WorldOptions& options)
    : own_messages_(std::move(messages)),
      messages_(*own_messages_),
      timeout_(options.timeout_s),
      grace_(std::clamp(options.timeout_s / 2, 0.5, 5.0)),
      dump_folder_(options.dump_folder),
      places_(static_cast<std::size_t>(messages_.size())) {}

void MpiJob::enter(const Operation& op, std::int64_t group, std::int64_t call) {
  check_system(failure_.empty(), "{}", failure_);
  check_system(!ended_, "{}: the world has ended", describe(op));
  op_ = &op;
  group_ = group;
  call_ = call;
  entered_ = moved_at_ = watched_at_ = Clock::now();
  if (asked_at_ != Clock::time_point{}) forget_answers();
}

void MpiJob::abandon(const Operation& op) {
  messages_.abandon();
  abandoned_.push_back(op.out);
  abandoned_.push_back(op.in);
  leave();
}

char* MpiJob::staging(std::int64_t bytes) {
  if (!staging_.defined() || staging_.numel() < bytes) {
    const CategoryScope scope(Category::communication);
    staging_ = Tensor();
    staging_ = Tensor::empty({bytes}, DType::u8);
  }
  return static_cast<char*>(staging_.raw());
}

void MpiJob::between(bool something) {
  if (something) {
    without_ = 0;
    moved_ = true;
    return;
  }
  if (++without_ < kSpins) return;
  if (without_ % kPollsAWatch == 0) watch();
  if (without_ < kYields)
    sched_yield();
  else
    std::this_thread::sleep_for(without_ < kYields + kShortSleeps ? kShortSleep : kLongSleep);
}

std::string MpiJob::failure() const {
  const std::lock_guard lock(heard_mutex_);
  return heard_;
}

void MpiJob::fail_soon(const std::string& why) {
  const std::lock_guard lock(heard_mutex_);
  if (soon_.empty() && why != heard_) soon_ = why;
}

void MpiJob::hear_of(const std::string& why, int culprit) {
  const std::lock_guard lock(heard_mutex_);
  if (!heard_.empty()) return;
  heard_ = why;
  heard_culprit_ = culprit;
}

void MpiJob::tell_soon() {
  std::string why;
  {
    const std::lock_guard lock(heard_mutex_);
    why = soon_;
  }
  if (why.empty() || !failure_.empty()) return;
  Note note{.kind = Note::Kind::failed};
  note.set_text(why);
  tell_all(note);
  fell(why);
}

void MpiJob::watch() {
  listen();
  tell_soon();
  send_question();
  check_system(failure_.empty(), "{}", failure_);
  if (giving_up_)
    fail(message("rank {} has ended with an error", messages_.rank()), messages_.rank());
  const Clock::time_point now = Clock::now();
  // Polls are at most about 3 ms apart. After a longer gap this process, and probably its peers,
  // had been stopped: extend the timeout by the gap.
  if (now - watched_at_ > kGap) moved_at_ += now - std::max(watched_at_, entered_);
  watched_at_ = now;
  if (moved_) moved_at_ = now;
  moved_ = false;
  if (!messages_.trouble().empty() && now - moved_at_ > kOnTheWay)
    fail(message("{}: {}", describe(*op_), messages_.trouble()));
  for (int r = 0; r < messages_.size(); ++r) {
    const Place& place = places_[static_cast<std::size_t>(r)];
    // This operation may not need that rank, or may have its data: ranks leave a collective one by
    // one.
    if (!place.ended || now - std::max({place.ended_at, entered_, moved_at_}) <= kOnTheWay)
      continue;
    moved_ = messages_.progress() || moved_;
    if (moved_ || !messages_.waits_for(r)) continue;
    if (place.end == Note::End::own_error) fail(message("rank {} has ended with an error", r), r);
    fail(message("rank {} has ended, and rank {} waits for it in {}", r, messages_.rank(),
                 describe(*op_)));
  }
  if (seconds(now - moved_at_) < timeout_) return;
  if (asked_at_ == Clock::time_point{}) {
    ask(needed());
  } else if (all_answered() || seconds(now - asked_at_) > grace_) {
    // A rank that waits in another call may wait for a rank that this operation does not need.
    if (const std::vector<int> others = not_needed(); somebody_waits_elsewhere() && !others.empty())
      ask(others);
    else
      fail(diagnosis());
  }
}

void MpiJob::listen() {
  Note note;
  while (messages_.hear(note)) {
    Place& place = places_[static_cast<std::size_t>(note.from)];
    switch (note.kind) {
      case Note::Kind::ask: {
        Note answer{.kind = Note::Kind::answer};
        if (op_) {
          answer.group = group_;
          answer.call = call_;
        }
        answer.set_text(where());
        messages_.tell(note.from, answer);
        break;
      }
      case Note::Kind::answer:
        place.answered = true;
        place.answer = note;
        break;
      case Note::Kind::question: {
        Note reply{.kind = Note::Kind::reply};
        const std::lock_guard lock(answer_mutex_);
        reply.set_text(answer_ ? answer_(note.text) : "it has no world of its GPU");
        messages_.tell(note.from, reply);
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

void MpiJob::lost(const Note& note) {
  if (!failure_.empty()) return;
  const std::string who = message("rank {} was lost: {}", note.from, note.text);
  const std::string why =
      op_ ? message("{}: {}", describe(*op_), who)
          : message("{}; rank {} was in no collective: {}", who, messages_.rank(), where());
  Note failed{.kind = Note::Kind::failed};
  failed.set_text(why);
  tell_all(failed);
  fell(why);
}

void MpiJob::tell_all(const Note& note) {
  for (int r = 0; r < messages_.size(); ++r)
    if (r != messages_.rank()) messages_.tell(r, note);
}

void MpiJob::fell(const std::string& why, int culprit) {
  if (!failure_.empty()) return;
  culprit_ = culprit;
  failed_at_ = Clock::now();
  messages_.doom();
  failure_ = why;
  hear_of(why, culprit);
  const FlightRecorder* const recorder = recorder_;
  if (recorder && !dump_folder_.empty()) recorder->write(dump_folder_, messages_.rank(), why);
}

void MpiJob::fail(const std::string& why, int culprit) {
  Note note{.kind = Note::Kind::failed, .culprit = culprit};
  note.set_text(why);
  tell_all(note);
  fell(why, culprit);
  throw Error(failure_, Fault::system);
}

void MpiJob::idle() {
  try {
    listen();
    tell_soon();
    send_question();
  } catch (const Error& e) {
    fell(e.what());
  }
  if (failure_.empty() || seconds(Clock::now() - failed_at_) < kLastResort) return;
  std::fprintf(stderr, "rank %d: still computing %g s after the job has failed: %s\n",
               messages_.rank(), kLastResort, failure_.c_str());
  messages_.abort(1);
}

}  // namespace weft::distributed
