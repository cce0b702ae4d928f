#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/distributed/flight_recorder.h"
#include "weft/distributed/process_group.h"

namespace weft::distributed {

/// A link that is slower than this machine's memory, to see what overlaps: each collective takes at
/// least latency_s + bytes sent / bytes_per_s of its communication thread.
struct SimulatedLink {
  double bytes_per_s = 0;  ///< 0: none
  double latency_s = 0;
};

struct WorldOptions {
  double timeout_s = 600;  ///< a collective that takes longer stops the job
  SimulatedLink link = {};
  /// Where every rank writes its latest collectives (rank_<rank>.txt) when the job fails; empty:
  /// nowhere.
  std::string dump_folder = {};
  int recorded = 2048;  ///< collectives that the flight recorder keeps
};

/// What this rank has sent since the start, and how long it has waited.
struct CommStats {
  std::int64_t calls = 0;
  std::int64_t bytes_sent = 0;
  double busy_s = 0;     ///< of the communication thread
  double waiting_s = 0;  ///< in Work::wait(): what communication costs a step
};

/// One rank's place among all ranks of a job, and the way to groups of them.
class World {
 public:
  virtual ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// The world of a process that has no other ranks: collectives return at once, on any device.
  static std::unique_ptr<World> alone();

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "thread", "mpi", "nccl", "fake" or "alone".
  virtual const char* backend() const = 0;
  /// All ranks.
  ProcessGroup& all() { return *all_; }
  /// A group of these ranks of the world. Every rank of the world makes the same calls in the same
  /// order, also for groups that it is not in, which are null.
  /// Throws Error on a rank that is not in the world or named twice.
  std::shared_ptr<ProcessGroup> group(const std::string& name, const std::vector<int>& ranks);

  /// Why the job has failed, where this rank has heard of it already; else "". Any thread may ask.
  virtual std::string failure() const { return {}; }

  CommStats stats() const;
  /// The latest collectives, for whoever looks for the one that hangs.
  const FlightRecorder& recorder() const;

 protected:
  World(int rank, int size, const WorldOptions& options);
  /// Called once by the constructor of the subclass, when open() works. Without a thread the caller
  /// carries everything out at once. `idle` is called now and then while the thread has nothing to
  /// do, and must not throw.
  void start(bool threaded, std::function<void()> idle = {});
  /// The backend's part of group(): `number` counts the calls of group(), equal on all ranks. On a
  /// rank that is not in the group rank_in_group is -1; what comes back is not used.
  virtual std::shared_ptr<Channel> open(const std::string& name, const std::vector<int>& ranks,
                                        int rank_in_group, int number) = 0;
  /// Ends the communication thread, after what is queued.
  void stop();
  const WorldOptions& options() const { return options_; }
  std::shared_ptr<const FlightRecorder> shared_recorder() const;

 private:
  int rank_, size_;
  WorldOptions options_;
  std::shared_ptr<CommThread> thread_;
  std::shared_ptr<ProcessGroup> all_;
  int groups_ = 0;
};

/// Runs f on `ranks` new threads of this process, each a rank with its own tape, random state and
/// communication thread. Returns when all have ended. The threads of the machine are shared out:
/// kernels of a rank run on num_threads() / ranks of them, and at least one.
/// Throws Error of the first rank that failed, as "rank 2: ...", or of the collective that did; the
/// other ranks are stopped at their next collective.
void run_ranks(int ranks, const std::function<void(World&)>& f, const WorldOptions& options = {});

/// Rank `rank` of a job that does not exist: collectives count their bytes and move nothing. For
/// planning, mostly on the meta device.
/// Throws Error unless 0 <= rank < size, and on options out of range.
std::unique_ptr<World> fake_world(int rank, int size, const WorldOptions& options = {});

}  // namespace weft::distributed
