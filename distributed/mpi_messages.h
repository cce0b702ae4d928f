#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace weft::distributed {

/// What ranks say to each other beside the data: who waits for whom, who has ended, what failed.
struct Note {
  enum class Kind : std::int32_t { ask, answer, failed, ended };
  /// How a rank has ended: with an error that is its own, or with what has stopped the job.
  enum class End : std::int32_t { well, own_error, job_failed };
  Kind kind = Kind::ask;
  std::int32_t from = 0;
  End end = End::well;        ///< ended
  std::int32_t culprit = -1;  ///< failed: the rank whose error that is, if it has ended with one
  /// An answer: the group and the call that its rank is in; -1: in none.
  std::int64_t group = -1, call = -1;
  /// An answer: where it is; failed: why; ended: the error that it has to say, if any.
  char text[1000] = {};

  void set_text(const std::string& s);
};

/// Messages between pairs of ranks: all of MPI that Weft uses. MPI is started by the constructor
/// (unless the program has) and ended by finish(). One thread at a time may call.
///
/// Messages of one pair and one tag arrive in the order in which they were sent. A batch is a
/// number for the messages that somebody will wait for together.
class MpiMessages {
 public:
  static constexpr int kBatches = 8;

  /// Waits until every rank has come; when that takes longer than timeout_s (and 10 s), the
  /// process ends, after it has called `too_late`, or, without one, printed a line.
  explicit MpiMessages(double timeout_s, std::function<void()> too_late = {});
  ~MpiMessages();
  MpiMessages(const MpiMessages&) = delete;

  int rank() const;
  int size() const;
  /// This rank's share of the processors that it may run on: see processor_share().
  int processors() const;

  /// A tag for a collective (or, with call -1, for the pairs' own messages) of a group.
  int tag(std::int64_t group, std::int64_t call) const;
  /// Starts. Any number of bytes; the memory must stay until the batch is through.
  void send(int to, int tag, const void* data, std::int64_t bytes, int batch);
  void receive(int from, int tag, void* data, std::int64_t bytes, int batch);
  /// Looks what has arrived; true when something has.
  bool progress();
  /// Messages of the batch, or of all, that are not through.
  int under_way(int batch) const;
  int under_way() const;
  /// Of those, are there any from or to this rank?
  bool waits_for(int rank) const;
  /// "" or what MPI said about a message: "8 bytes came instead of 4".
  const std::string& trouble() const;
  /// Gives up what is under way. Its memory may still be written to.
  void abandon();

  void tell(int to, const Note& note);
  /// The next note, if one has come.
  bool hear(Note& note);

  /// Ends MPI, if it was started here: every rank has to come, and nothing may be under way.
  void finish();
  /// From now on this process ends with MPI_Abort, and with a status other than 0: the other ranks
  /// cannot be left waiting for it.
  void doom();
  /// Ends every rank now.
  [[noreturn]] static void abort(int status);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::distributed
