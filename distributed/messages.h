#pragma once
#include <cstdint>
#include <string>

#include "weft/distributed/lane.h"

namespace weft::distributed {

/// A control message between ranks: who waits for whom, who has ended, what failed, and questions
/// of World::ask() with their replies.
struct Note {
  enum class Kind : std::int32_t { ask, answer, failed, ended, question, reply, lost };
  /// How a rank ended: without error, with an error of its own, or because the job failed.
  enum class End : std::int32_t { well, own_error, job_failed };
  Kind kind = Kind::ask;
  std::int32_t from = 0;
  End end = End::well;        ///< for Kind::ended
  std::int32_t culprit = -1;  ///< for Kind::failed: the rank whose error it is, or -1
  /// For Kind::answer: the group and call that the rank is in; -1: none.
  std::int64_t group = -1, call = -1;
  std::int32_t queue = 0;  ///< for Kind::ask and answer: of the rank that asks
  /// answer: what the rank is doing; failed: the reason; ended: its unprinted error, if any; lost:
  /// how this rank knows that `from` is gone. No rank sends the last kind: hear() makes it.
  char text[1000] = {};

  void set_text(const std::string& s);
};

/// Point-to-point messages between the processes of a job: all that groups over processes need of a
/// transport. Calls must come from one thread at a time.
///
/// Messages of one pair and one tag arrive in the order they were sent. A batch is an index that
/// groups messages to be waited for together; batch b is part of queue b / kBatches.
class Messages {
 public:
  static constexpr int kBatches = 8, kQueues = kLanes;

  Messages() = default;
  virtual ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// This rank's share of the processors it may run on: see processor_share().
  virtual int processors() const = 0;

  /// Highest tag that send() and receive() take, at least 32767.
  virtual int largest_tag() const = 0;
  /// The tag of a collective of a group, or, with call -1, of the group's point-to-point messages.
  /// Lanes have different tags, because ranks run them in no common order.
  int tag(Lane lane, std::int64_t group, std::int64_t call) const;
  /// Starts a transfer of any size; of 0 bytes none. The memory must stay valid until the batch has
  /// completed.
  virtual void send(int to, int tag, const void* data, std::int64_t bytes, int batch) = 0;
  virtual void receive(int from, int tag, void* data, std::int64_t bytes, int batch) = 0;
  /// Polls for completed messages.
  virtual void progress() = 0;
  /// Whether a message of the queue has moved since the last call.
  virtual bool has_moved(int queue) = 0;
  /// Number of pending messages of the batch.
  virtual int under_way(int batch) const = 0;
  /// Whether a pending message of the queue is from or to this rank.
  virtual bool waits_for(int queue, int rank) const = 0;
  /// Empty, or what is wrong with a message of the queue: "a message of rank 1 had 8 bytes instead
  /// of 4".
  virtual const std::string& trouble(int queue) const = 0;
  /// Abandons pending messages of the queue. The transport may still write to their memory.
  virtual void abandon(int queue) = 0;

  virtual void tell(int to, const Note& note) = 0;
  /// Takes the next note, if one has arrived.
  virtual bool hear(Note& note) = 0;

  /// Disconnects. Every rank must call it, with no message pending.
  virtual void finish() = 0;
  /// The job has failed: from now on this process ends with a nonzero status, if the transport can
  /// tell the others that way only.
  virtual void doom() {}
  /// Ends this process immediately, and the others where the transport can.
  [[noreturn]] virtual void abort(int status) = 0;
};

}  // namespace weft::distributed
