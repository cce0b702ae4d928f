#pragma once
#include <functional>
#include <memory>
#include <string>

#include "weft/distributed/world.h"

namespace weft::distributed {

/// Was this process started by mpirun or srun, as one of several? Looks at the environment only.
bool under_mpi();
/// This process's number among those, or -1. For what only one of them should say before they meet.
int launched_rank();
/// How many processes the launcher has started together; 1 where it does not say.
int launched_ranks();

/// For a rank of a job that ends with an error which nothing has printed yet: what its users should
/// read, once and not once a rank. Calls `print` with `error` itself when all ranks end with it or
/// it is what has stopped the job, behind "rank 2: " or "ranks 1, 3: " when only some do. Never
/// calls it on a rank that is not the first of those, or that was stopped by the error of another
/// one, which says so. Ends this rank's world; a rank that has made none (null) meets the others
/// for this, if they come within 10 seconds.
///
/// Whoever does not hear from the others within 5 seconds speaks: they may be computing. So a line
/// can come twice, and none gets lost. Without a launcher, and for other worlds: prints at once.
void end_with_error(std::unique_ptr<World> world, const std::string& error,
                    const std::function<void(const std::string&)>& print);

/// This process's place among the ranks that mpirun or srun has started. Without a launcher: the
/// only rank of a job of one. Every rank makes it once, at its start, and keeps it until its end:
/// its destructor waits for the other ranks' destructors and ends MPI. Kernels use this rank's
/// share of the processors that it may run on, unless set_num_threads() or OMP_NUM_THREADS says
/// otherwise.
///
/// A job that fails (a rank was stopped, has died or ended, called something else) throws Error
/// (Fault::system) from Work::wait() on every rank; such a process ends with a status other than 0
/// and takes the others along.
/// Throws Error in a library built without MPI, and when MPI does not allow calls from threads.
std::unique_ptr<World> mpi_world(const WorldOptions& options = {});

/// Bytes of tensors that this rank's collectives have given to MPI for other ranks: what
/// CommStats::bytes_sent counts in advance.
/// Throws Error when the world is not mpi_world()'s.
std::int64_t mpi_bytes_moved(const World& world);

}  // namespace weft::distributed
