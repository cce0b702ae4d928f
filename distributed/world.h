#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/distributed/lane.h"
#include "weft/distributed/process_group.h"

namespace weft::distributed {

class FlightRecorder;

/// Lists of world ranks, of which none is in two.
using RankLists = std::vector<std::vector<int>>;

/// One call of World::split() on one rank, as a backend sees it.
struct GroupCall {
  std::string name;
  std::shared_ptr<const RankLists> lists;
  int list = -1;   ///< the list that has this rank; -1: none
  int rank = -1;   ///< its place in that list
  int number = 0;  ///< index among the calls, equal on all ranks
  Lane lane = Lane::model;
  int queue = 0;  ///< of the lane, below WorldOptions::lanes
  const std::vector<int>& ranks() const { return (*lists)[static_cast<std::size_t>(list)]; }
};

/// Simulates a link slower than this machine's memory, to make overlap measurable: each collective
/// occupies its queue for at least latency_s + bytes sent / bytes_per_s. Queues do not share it.
struct SimulatedLink {
  double bytes_per_s = 0;  ///< 0: no simulation
  double latency_s = 0;
};

struct WorldOptions {
  double timeout_s = 600;  ///< a collective that takes longer stops the job
  /// A process of a failed job ends if NCCL does not abort its collectives within this time.
  double last_resort_s = 30;
  SimulatedLink link = {};
  std::optional<SimulatedLink> data_link = {};  ///< of Lane::data, if it uses another network
  /// Folder in which every rank writes its latest collectives (rank_<rank>.txt) when the job fails.
  /// Empty: no file is written.
  std::string dump_folder = {};
  int recorded = 2048;  ///< entries that the flight recorder keeps
  /// Number of queues for the lanes: see queue_of(). 1 runs all collectives in call order.
  int lanes = kLanes;
};

/// What this rank has sent and how long it has waited, since the start.
struct CommStats {
  std::int64_t calls = 0;
  std::int64_t bytes_sent = 0;
  double busy_s = 0;     ///< time spent in collectives
  double waiting_s = 0;  ///< time spent in Work::wait(): the exposed communication

  CommStats& operator+=(const CommStats& o) {
    calls += o.calls;
    bytes_sent += o.bytes_sent;
    busy_s += o.busy_s;
    waiting_s += o.waiting_s;
    return *this;
  }
};

/// One rank's view of a job: its rank, the number of ranks, and the process groups.
class World {
 public:
  virtual ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// The world of a single-process job: collectives return at once, on any device.
  static std::unique_ptr<World> alone();

  int rank() const { return rank_; }
  int size() const { return size_; }
  double timeout_s() const { return options_.timeout_s; }
  /// "thread", "mpi", "tcp", "nccl", "fake" or "alone".
  virtual const char* backend() const = 0;
  /// The group of all ranks.
  ProcessGroup& all() { return *all_; }
  /// Creates a group of these world ranks, whose collectives run in `lane`. Every rank of the world
  /// makes the same calls in the same order, also for groups it does not belong to; there the
  /// result is null. Throws Error on a rank outside the world or listed twice.
  std::shared_ptr<ProcessGroup> group(const std::string& name, const std::vector<int>& ranks,
                                      Lane lane = Lane::model);
  /// Creates a group for each list, all of one name, and returns this rank's; null if it is in no
  /// list. As group(), and also throws Error on a rank in two lists. A backend
  /// that has to connect the ranks does so at the first collective of any of the groups, which all
  /// ranks must then reach in the same order; or at once if some rank is alone or in no list.
  std::shared_ptr<ProcessGroup> split(const std::string& name, RankLists lists,
                                      Lane lane = Lane::model);

  /// Why the job failed, if this rank knows already, else "". Callable from any thread.
  virtual std::string failure() const { return {}; }
  /// Throws Error if the job has failed. Call it after the host has waited for a GPU's values that
  /// depend on a collective: when one is aborted, they are wrong.
  void check_well() const;
  /// Ends the job: tells every rank why, without waiting. Callable from any thread.
  virtual void fail(const std::string&) {}
  /// Lets the end of this world report `why` unless wait() or check_well() throws before: for a
  /// world of GPUs above it, whose collectives failed after their wait() or without one. Called by
  /// the rank's thread.
  void fail_at_end(const std::string& why) { at_end_ = why; }

  /// How this rank answers ask() of others, from any thread; null: no more.
  using Answer = std::function<std::string(const std::string& question)>;
  virtual void set_answer(Answer) {}
  /// The answers of all ranks, by rank; "" for those that do not answer within some seconds.
  /// Callable from any thread, also while collectives hang.
  virtual std::vector<std::string> ask(const std::string&) { return {}; }

  /// Number of communicators that this rank has made so far, the world's included; 0 for a backend
  /// whose groups need none. Counts those that other ranks split at the same time as one.
  virtual int communicators() const { return 0; }

  CommStats stats() const;
  /// Of the groups of one lane.
  CommStats stats(Lane lane) const;
  /// The latest collectives, to find one that hangs.
  const FlightRecorder& recorder() const { return *recorder_; }

 protected:
  World(int rank, int size, const WorldOptions& options);
  /// The subclass's constructor calls this once, as soon as open() works. If not `threaded`,
  /// collectives run in the caller. The communication thread of the first queue calls `idle` every
  /// few milliseconds while its queue is empty; it must not throw.
  void start(bool threaded, std::function<void()> idle = {});
  /// The backend's part of split(). On a rank in none of the lists the result is ignored.
  virtual std::shared_ptr<Channel> open(const GroupCall& call) = 0;
  /// Stops the communication threads once their queues are empty.
  void stop();
  /// Whether wait() or check_well() has thrown.
  bool has_thrown() const;
  /// After stop(): why a collective has failed whose Work was dropped without wait(), or what
  /// fail_at_end() was given; or empty.
  std::string unseen_failure() const;
  const WorldOptions& options() const { return options_; }
  const std::shared_ptr<FlightRecorder>& shared_recorder() const { return recorder_; }

 private:
  int rank_, size_;
  WorldOptions options_;
  const std::shared_ptr<FlightRecorder> recorder_;
  std::vector<std::shared_ptr<CommThread>> threads_;  // by queue; one if not threaded
  std::shared_ptr<ProcessGroup> all_;
  int groups_ = 0;
  std::string at_end_;
};

/// Runs f on `ranks` new threads of this process. Each thread is a rank with its own tape, random
/// state and communication thread. Returns when all have ended. Kernels of a rank use num_threads()
/// / ranks threads, at least one.
/// Throws the Error of the first rank that failed, as "rank 2: ...", or of the collective that
/// failed; the other ranks stop at their next collective.
void run_ranks(int ranks, const std::function<void(World&)>& f, const WorldOptions& options = {});

/// Rank `rank` of a job that does not exist: collectives count their bytes and move no data. Used
/// for planning, usually on the meta device. Throws Error unless 0 <= rank < size, and on options
/// out of range.
std::unique_ptr<World> fake_world(int rank, int size, const WorldOptions& options = {});

}  // namespace weft::distributed
