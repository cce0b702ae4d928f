#pragma once
#include <functional>
#include <memory>
#include <string>

#include "weft/distributed/world.h"

namespace weft::distributed {

/// Whether mpirun or srun started this process as one of several. Reads the environment only.
bool under_mpi();
/// This process's rank in the launch, or -1. For messages that one process prints before MPI
/// starts.
int launched_rank();
/// Number of processes that the launcher started; 1 if it does not say.
int launched_ranks();
/// Whether this process is to print what all processes of a launch would print alike. Without MPI
/// they cannot agree, but srun numbers them.
bool prints_for_all();

/// Ends a rank with an error that nothing has printed yet, and prints that error once per job
/// instead of once per rank. Calls `print` with the bare error when all ranks end with it or it
/// stopped the job, and with the prefix "rank 2: " or "ranks 1, 3: " when only some ranks end with
/// it. Only the first of those ranks prints; a rank that another rank's error has stopped does not.
/// Ends this rank's world. A rank that has not created its world (null) meets the others for this,
/// if they arrive within 10 seconds.
///
/// A rank that does not hear from the others within 5 seconds prints, because they may be
/// computing: a line can appear twice but is never lost. Without a launcher, and for other worlds,
/// prints at once.
void end_with_error(std::unique_ptr<World> world, const std::string& error,
                    const std::function<void(const std::string&)>& print);

/// This process's rank in the job that mpirun or srun started; without a launcher, a job of one
/// rank. Every rank calls it once at start and keeps the world until it ends: the destructor waits
/// for the other ranks' destructors and finalizes MPI. Kernels use this rank's share of the
/// processors it may run on, unless set_num_threads() or OMP_NUM_THREADS sets another number.
///
/// When the job fails (a rank was stopped, died, ended, or made a different call), Work::wait()
/// throws Error (Fault::system) on every rank. A process that ends after that has a nonzero status
/// and ends the other ranks too.
/// Throws Error in a library built without MPI, when MPI does not allow calls from several threads,
/// and when it connects fewer processes than the launcher started.
std::unique_ptr<World> mpi_world(const WorldOptions& options = {});

/// Bytes of tensor data that this rank has passed to MPI for other ranks; CommStats::bytes_sent
/// predicts this number. Throws Error unless the world comes from mpi_world().
std::int64_t mpi_bytes_moved(const World& world);

}  // namespace weft::distributed
