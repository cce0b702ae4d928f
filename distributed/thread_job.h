#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/distributed/flight_recorder.h"
#include "weft/distributed/world.h"

namespace weft::distributed {

class Rendezvous;

/// State shared by the rank threads of a job: which ranks are present, and whether and why it
/// failed.
class Job {
 public:
  Job(int ranks, const WorldOptions& options);

  double timeout_s() const { return options_.timeout_s; }
  /// Stops every rank at its next rendezvous. Only the first failure is kept. Do not call it while
  /// holding a rendezvous's lock.
  void fail(const std::string& why, Fault fault);
  /// Declares that the rank will not enter any rendezvous again.
  void leave(int rank);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  bool has_left(int rank) const {
    return left_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  }
  /// Valid once failed() returns true.
  Error failure() const { return Error(why_, fault_); }

  void set_answer(int rank, World::Answer answer);
  std::vector<std::string> ask(const std::string& question);

  void add_recorder(int rank, std::shared_ptr<const FlightRecorder> recorder);
  /// The rendezvous of this rank's list of a call of World::split(); null if it is in none. Throws
  /// Error when another rank made that call with a different name or other lists.
  std::shared_ptr<Rendezvous> rendezvous(int rank, const GroupCall& call);

 private:
  void wake_all();

  const WorldOptions options_;
  std::mutex mutex_;
  std::vector<std::atomic<bool>> left_;
  std::atomic<bool> failed_{false};
  std::string why_;
  Fault fault_ = Fault::system;
  std::vector<std::shared_ptr<const FlightRecorder>> recorders_;
  std::mutex answers_mutex_;
  std::vector<World::Answer> answers_;
  struct Called {
    int rank = -1;  // the first to call
    GroupCall call;
    std::vector<std::shared_ptr<Rendezvous>> rendezvous;  // by list, as its ranks come
  };
  std::vector<Called> groups_;  // by number of the call
};

/// Where the ranks of one group meet and see each other's operations. After all have arrived, a
/// rank may read its peers' operations until it arrives again. A rank must not unwind while a peer
/// still reads its tensors, even if the job has failed.
class Rendezvous {
 public:
  Rendezvous(Job& job, std::vector<int> ranks);
  const std::vector<int>& ranks() const { return ranks_; }

  /// Blocks until every rank has arrived with the same call count. If `reads`, at() is then valid
  /// until this rank arrives again or withdraws.
  void arrive(int rank, const Operation& op, bool reads);
  const Operation& at(int rank) const { return *here_[static_cast<std::size_t>(rank)]; }
  /// After an exception: blocks until no peer reads this rank's operation.
  void leave(int rank, const Operation& op);

  /// Point-to-point messages, in order between each pair: the receiver reads the sender's operation
  /// and copies its data.
  struct Message {
    const Operation* sender = nullptr;
    const Transfer* sent = nullptr;
    std::size_t receive = 0;  ///< index in the receiver's list
  };
  void post_sends(int rank, const Operation& op);
  /// The first to come of the messages that the operation expects, but for those already received.
  Message begin_receive(int rank, const Operation& op, const std::vector<char>& received);
  void end_receive(int rank, int from);
  void wait_received(int rank, const Operation& op);

  void wake();

 private:
  struct Mailbox {
    std::vector<Message> messages;  // oldest first
    bool being_taken = false;       // the oldest is read now
    bool holds(const Operation& op) const;
  };
  Mailbox& mailbox(int from, int to) {
    return mailboxes_[static_cast<std::size_t>(from) * ranks_.size() +
                      static_cast<std::size_t>(to)];
  }
  template <class Ready, class Missing>
  void wait(std::unique_lock<std::mutex>& lock, const Operation& op, Ready ready, Missing missing);
  template <class Missing>
  std::string why_not(const Operation& op, Missing missing, bool timed_out) const;

  Job& job_;
  const std::vector<int> ranks_;  // world ranks
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const Operation*> here_;
  std::vector<std::int64_t> visits_;  // by rank: number of arrivals
  std::vector<char> reads_;           // by rank: whether it reads now
  std::atomic<std::int64_t> round_{0};
  int arrived_ = 0, reading_ = 0, asleep_ = 0;
  std::vector<Mailbox> mailboxes_;  // [from * size + to]
};

}  // namespace weft::distributed
