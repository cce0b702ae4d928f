#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/distributed/messages.h"
#include "weft/distributed/operation.h"

namespace weft::distributed {

class MessageJob;

/// The operations of one queue over messages, one at a time: how the thread that runs one waits for
/// its messages, and finds out which rank they do not come from. The queues of a process share its
/// job.
class MessageQueue {
 public:
  MessageQueue(MessageJob& job, int number);
  MessageQueue(const MessageQueue&) = delete;

  /// Declares the operation that runs until leave(); it is reported to other ranks and named by a
  /// timeout. Throws Error when the job has failed.
  void enter(const Operation& op, std::int64_t group, std::int64_t call);
  void leave();
  /// Abandons the operation passed to enter(), whose error fails the job.
  void abandon(const Operation& op, const std::string& why);

  // As of Messages, with this queue's batches:
  int tag(Lane lane, std::int64_t group, std::int64_t call) const;
  void send(int to, int tag, const void* data, std::int64_t bytes, int batch);
  void receive(int from, int tag, void* data, std::int64_t bytes, int batch);
  int under_way(int batch) const;
  int under_way() const;
  bool is_in_trouble() const;

  /// Polls until done(). Throws Error when the job fails, or when no message makes progress until
  /// the timeout.
  template <class Done>
  void wait(Done done) {
    without_ = 0;
    while (!done() || is_in_trouble()) between();
  }
  /// A buffer of at least this many bytes for received data, reused by later calls.
  char* staging(std::int64_t bytes);

 private:
  friend class MessageJob;
  using Clock = std::chrono::steady_clock;

  void between();
  bool progress();
  bool waits_for(int rank) const;
  // With the job's mutex:
  void watch();
  void check_peers(Clock::time_point now);
  // distributed/message_questions.cpp
  void ask(const std::vector<int>& ranks);
  void forget_answers();
  bool all_answered() const;
  std::vector<int> needed() const;  // world ranks
  std::vector<int> not_needed() const;
  struct Peer {
    bool asked = false, answered = false;
    Note answer;
  };
  bool is_elsewhere(const Peer& peer) const;
  bool somebody_waits_elsewhere() const;
  std::string diagnosis() const;

  MessageJob& job_;
  Messages& messages_;  // with the job's messages_mutex_
  const int number_;

  // Set with the job's mutex by the thread that runs the operation, and read by others with it.
  const Operation* op_ = nullptr;
  std::int64_t group_ = -1, call_ = -1;

  Clock::time_point entered_{}, watched_at_{}, moved_at_{};
  Clock::time_point asked_at_{};  // zero until asked
  bool moved_ = false;
  int without_ = 0;          // polls since something arrived
  std::vector<Peer> peers_;  // by rank; with the job's mutex
  Tensor staging_;
};

}  // namespace weft::distributed
