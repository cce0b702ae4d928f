#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/distributed/messages.h"
#include "weft/distributed/operation.h"
#include "weft/distributed/world.h"

namespace weft::distributed {

/// State shared by the groups of one process: its messages, how it waits for them, and how it
/// diagnoses missing ones. A live rank answers the questions of other ranks while it computes,
/// while it waits and after it has ended, so a stopped rank can be told from one that is in another
/// call.
class MpiJob {
 public:
  using Print = std::function<void(const std::string&)>;

  MpiJob(std::unique_ptr<Messages> messages, const WorldOptions& options);

  Messages& messages() { return messages_; }

  // Called by the thread that runs a collective.

  /// Declares the operation that runs until leave(); it is reported to other ranks and named by a
  /// timeout. Throws Error when the job has failed.
  void enter(const Operation& op, std::int64_t group, std::int64_t call);
  void leave() { op_ = nullptr; }
  /// Abandons the operation passed to enter().
  void abandon(const Operation& op);
  /// Polls until done(). Throws Error when the job fails, or when no message makes progress until
  /// the timeout.
  template <class Done>
  void wait(Done done) {
    without_ = 0;
    while (!done() || !messages_.trouble().empty()) between(messages_.progress());
  }
  /// Tells every rank why the job has failed, and throws. `culprit`: the rank whose error ended the
  /// job, if that is the reason.
  [[noreturn]] void fail(const std::string& why, int culprit = -1);
  void count(std::int64_t bytes) { moved_bytes_ += bytes; }
  std::int64_t moved_bytes() const { return moved_bytes_; }
  /// A buffer of at least this many bytes for received data, reused by later calls.
  char* staging(std::int64_t bytes);
  /// Called while there is nothing to do: answers other ranks. Does not throw.
  void idle();

  // Called by any thread.

  /// Why the job has failed or will fail: a rank that has ended with an error counts, also if this
  /// rank waits for no message of it.
  std::string failure() const;
  /// Lets the communication thread fail() with this reason.
  void fail_soon(const std::string& why);
  /// World::ask() and set_answer().
  std::vector<std::string> question_all(const std::string& question);
  void set_answer(World::Answer answer);

  // Called by the rank's own thread.

  /// Its entries are written to a file when the job fails.
  void set_recorder(const FlightRecorder* recorder) { recorder_ = recorder; }
  /// Declares that this rank is about to end with `error`, which it has not printed; "" if it
  /// prints the error itself.
  void give_up(const std::string& error = "");
  /// After the communication thread has stopped: waits until the other ranks end too, and finalizes
  /// MPI. Calls `print`, if set, with this rank's error unless another rank prints it: see
  /// end_with_error().
  void finish(const Print& print = {});

 private:
  using Clock = std::chrono::steady_clock;
  struct Place {  // state of a peer
    bool ended = false, asked = false, answered = false;
    Clock::time_point ended_at{};
    Note::End end = Note::End::well;
    std::string words;  // its unprinted error
    Note answer;
  };

  void between(bool something);
  void watch();
  void listen();
  void lost(const Note& note);
  void tell_all(const Note& note);
  // distributed/message_questions.cpp
  void ask(const std::vector<int>& ranks);
  void forget_answers();
  bool all_answered() const;
  std::vector<int> needed() const;  // world ranks
  std::vector<int> not_needed() const;
  bool is_elsewhere(const Place& place) const;
  bool somebody_waits_elsewhere() const;
  std::string where() const;
  std::string diagnosis() const;
  void fell(const std::string& why, int culprit = -1);
  void hear_of(const std::string& why, int culprit);
  void tell_soon();
  void send_question();
  void take_reply(const Note& note);
  // distributed/message_end.cpp
  std::vector<int> still_there() const;
  void lost_at_the_end();
  bool is_due(const std::vector<int>& others, Clock::duration waited) const;
  std::string own_line(Clock::time_point begin) const;

  const std::unique_ptr<Messages> own_messages_;
  Messages& messages_;
  const double timeout_, grace_;
  const std::string dump_folder_;
  std::atomic<const FlightRecorder*> recorder_{nullptr};
  std::atomic<bool> giving_up_{false};
  Note::End end_ = Note::End::well;
  std::string words_;  // complete; other ranks see what fits into a note
  bool ended_ = false;

  const Operation* op_ = nullptr;
  std::int64_t group_ = -1, call_ = -1;
  Clock::time_point entered_{}, watched_at_{}, moved_at_{};
  Clock::time_point asked_at_{};  // zero until asked
  bool moved_ = false;
  int without_ = 0;  // polls since something arrived

  std::vector<Place> places_;  // by rank
  std::atomic<std::int64_t> moved_bytes_{0};
  std::string failure_;
  int culprit_ = -1;
  mutable std::mutex heard_mutex_;
  std::string heard_;  // as failure_, or that a rank has ended with an error
  int heard_culprit_ = -1;
  std::string soon_;                  // by fail_soon()
  std::string question_;              // to be sent
  std::vector<std::string> replies_;  // by rank
  std::mutex answer_mutex_;
  World::Answer answer_;
  bool was_told_ = false;  // another rank reported the failure
  Clock::time_point failed_at_{};
  Tensor staging_;
  std::vector<Tensor> abandoned_;  // a transport may still write to them
};

}  // namespace weft::distributed
