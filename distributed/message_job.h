#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/distributed/message_queue.h"
#include "weft/distributed/messages.h"
#include "weft/distributed/world.h"

namespace weft::distributed {

/// State shared by the groups of one process: its messages, what it knows of other ranks, and
/// whether the job has failed. A live rank answers the questions of other ranks while it computes,
/// while it waits and after it has ended, so a stopped rank can be told from one that is in another
/// call.
class MessageJob {
 public:
  using Print = std::function<void(const std::string&)>;

  MessageJob(std::unique_ptr<Messages> messages, const WorldOptions& options);

  /// Its rank, size and processors; other calls need messages_mutex_ while collectives run.
  Messages& messages() { return messages_; }
  MessageQueue& queue(int number) { return *queues_[static_cast<std::size_t>(number)]; }

  // Called by threads that run collectives.

  /// Tells every rank why the job has failed, and throws. `culprit`: the rank whose error ended the
  /// job, if that is the reason.
  [[noreturn]] void fail(const std::string& why, int culprit = -1);
  void count(std::int64_t bytes) { moved_bytes_ += bytes; }
  std::int64_t moved_bytes() const { return moved_bytes_; }
  /// Called while the first queue has nothing to do: answers other ranks. Does not throw.
  void idle();

  // Called by any thread.

  /// Why the job has failed or will fail: a rank that has ended with an error counts, also if this
  /// rank waits for no message of it.
  std::string failure() const;
  /// Lets a communication thread fail() with this reason.
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
  /// After the communication threads have stopped: waits until the other ranks end too, and
  /// finishes the messages. Calls `print`, if set, with this rank's error unless another rank
  /// prints it: see end_with_error().
  void finish(const Print& print = {});

 private:
  friend class MessageQueue;
  using Clock = std::chrono::steady_clock;
  struct Place {  // state of a peer
    bool ended = false;
    Clock::time_point ended_at{};
    Note::End end = Note::End::well;
    std::string words;  // its unprinted error
  };

  // With the mutex, while collectives run:
  void look_around();
  void listen();
  void lost(const Note& note);
  void tell(int rank, const Note& note);
  bool hear(Note& note);
  void tell_all(const Note& note);
  void tell_failure(const std::string& why, int culprit);
  [[noreturn]] void fail_now(const std::string& why, int culprit = -1);
  void fell(const std::string& why, int culprit = -1);
  // distributed/message_questions.cpp
  Note answer_to(const Note& ask) const;
  std::string where(const Operation* op) const;
  void send_question();
  void take_reply(const Note& note);

  void hear_of(const std::string& why, int culprit);
  void tell_soon();
  // distributed/message_end.cpp
  std::vector<int> still_there() const;
  void lost_at_the_end();
  bool is_due(const std::vector<int>& others, Clock::duration waited) const;
  std::string own_line(Clock::time_point begin) const;

  std::mutex messages_mutex_;  // taken after mutex_
  const std::unique_ptr<Messages> own_messages_;
  Messages& messages_;
  const double timeout_, grace_;
  const std::string dump_folder_;
  std::atomic<const FlightRecorder*> recorder_{nullptr};
  std::atomic<bool> giving_up_{false};
  Note::End end_ = Note::End::well;
  std::string words_;  // complete; other ranks see what fits into a note

  std::mutex mutex_;
  bool ended_ = false;
  std::vector<std::unique_ptr<MessageQueue>> queues_;
  std::vector<Place> places_;  // by rank
  std::string failure_;
  int culprit_ = -1;
  bool was_told_ = false;  // another rank reported the failure
  Clock::time_point failed_at_{};
  std::vector<Tensor> abandoned_;  // a transport may still write to them

  std::atomic<std::int64_t> moved_bytes_{0};
  mutable std::mutex heard_mutex_;
  std::string heard_;  // as failure_, or that a rank has ended with an error
  int heard_culprit_ = -1;
  std::string soon_;                  // by fail_soon()
  std::string question_;              // to be sent
  std::vector<std::string> replies_;  // by rank
  std::mutex answer_mutex_;
  World::Answer answer_;
};

}  // namespace weft::distributed
