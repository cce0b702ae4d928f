#pragma once
#include <string>
#include <vector>

#include "weft/distributed/socket.h"

namespace weft::examples {

/// A program to be started as ranks on this machine, each with its place in the environment: see
/// distributed::tcp_place().
struct RankProcesses {
  std::vector<std::string> command = {};
  int ranks = 1;  ///< on this machine
  int first = 0;  ///< rank of the first of them
  int world = 1;  ///< ranks on all machines
  distributed::Endpoint master = {};
  std::string token = {};
  std::string log_dir = {};  ///< empty: all write to this process's output
  double grace_s = 3;        ///< for the others to end after one has failed
  int restarts = 0;          ///< so often has the job been started again: WEFT_RESTART
};

/// How the ranks ended.
struct RanksEnd {
  int status = 0;  ///< of `rank`: its exit status, or 128 plus the signal; else 0
  int rank = -1;   ///< that a signal killed, or that ended for a user's mistake (2), or the first
                   ///< that failed
  int signal = 0;  ///< that killed it
  bool interrupted = false;  ///< this process was told to stop
};

/// Starts the ranks and waits for all of them. SIGINT, SIGTERM, SIGHUP and SIGUSR1 go to each rank;
/// a second SIGINT or SIGTERM kills them. If one fails, the others have grace_s to end. With
/// log_dir, what rank N writes goes to rank_N.log there, is appended, and errors and the first
/// rank's output are shown as well. Returns only when no rank is left; ranks end as well when this
/// process is killed. Throws Error if there is no such program.
RanksEnd run_rank_processes(const RankProcesses& job);

}  // namespace weft::examples
