#pragma once
#include <memory>

#include "weft/distributed/world.h"

namespace weft::distributed {

/// Was this process started by mpirun or srun, as one of several? Looks at the environment only.
bool under_mpi();
/// This process's number among those, or -1. For what only one of them should say before they meet.
int launched_rank();

/// This process's place among the ranks that mpirun or srun has started. Without a launcher: the
/// only rank of a job of one. Every rank makes it once, at its start, and keeps it until its end:
/// its destructor waits for the other ranks' destructors and ends MPI. Kernels use this rank's
/// share of the machine's processors, unless OMP_NUM_THREADS says otherwise.
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
