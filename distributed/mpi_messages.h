#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace weft::distributed {

/// A control message between ranks: who waits for whom, who has ended, what failed, and questions
/// of World::ask() with their replies.
struct Note {
  enum class Kind : std::int32_t { ask, answer, failed, ended, question, reply };
  /// How a rank ended: without error, with an error of its own, or because the job failed.
  enum class End : std::int32_t { well, own_error, job_failed };
  Kind kind = Kind::ask;
  std::int32_t from = 0;
  End end = End::well;        ///< for Kind::ended
  std::int32_t culprit = -1;  ///< for Kind::failed: the rank whose error it is, or -1
  /// For Kind::answer: the group and call that the rank is in; -1: none.
  std::int64_t group = -1, call = -1;
  /// answer: what the rank is doing; failed: the reason; ended: its unprinted error, if any.
  char text[1000] = {};

  void set_text(const std::string& s);
};

/// Point-to-point messages: all that Weft uses of MPI. The constructor initializes MPI unless the
/// program has done so; finish() finalizes it. Calls must come from one thread at a time.
///
/// Messages of one pair and one tag arrive in the order they were sent. A batch is an index that
/// groups messages to be waited for together.
class MpiMessages {
 public:
  static constexpr int kBatches = 8;

  /// Waits for every rank. If that takes longer than timeout_s (at least 10 s), calls `too_late`
  /// (or prints a line if it is null) and ends the process.
  explicit MpiMessages(double timeout_s, std::function<void()> too_late = {});
  ~MpiMessages();
  MpiMessages(const MpiMessages&) = delete;

  int rank() const;
  int size() const;
  /// This rank's share of the processors it may run on: see processor_share().
  int processors() const;

  /// The tag of a collective of a group, or, with call -1, of the group's point-to-point messages.
  int tag(std::int64_t group, std::int64_t call) const;
  /// Starts a transfer of any size. The memory must stay valid until the batch has completed.
  void send(int to, int tag, const void* data, std::int64_t bytes, int batch);
  void receive(int from, int tag, void* data, std::int64_t bytes, int batch);
  /// Polls for completed messages; true if there was one.
  bool progress();
  /// Number of pending messages, of the batch or in total.
  int under_way(int batch) const;
  int under_way() const;
  /// Whether a pending message is from or to this rank.
  bool waits_for(int rank) const;
  /// Empty, or what is wrong with a message: "a message of rank 1 had 8 bytes instead of 4".
  const std::string& trouble() const;
  /// Abandons pending messages. MPI may still write to their memory.
  void abandon();

  void tell(int to, const Note& note);
  /// Takes the next note, if one has arrived.
  bool hear(Note& note);

  /// Finalizes MPI if it was initialized here. Every rank must call it, with no message pending.
  void finish();
  /// From now on this process ends with MPI_Abort and a nonzero status, because the other ranks
  /// cannot be left waiting for it.
  void doom();
  /// Ends every rank immediately.
  [[noreturn]] static void abort(int status);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::distributed
