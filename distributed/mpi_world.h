#pragma once
#include <functional>
#include <memory>

#include "weft/distributed/world.h"

namespace weft::distributed {

class Messages;

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

/// Whether the library was built with MPI.
bool has_mpi();
/// The transport of mpi_world(); see MpiMessages. Throws Error in a library built without MPI.
std::unique_ptr<Messages> mpi_messages(double timeout_s, std::function<void()> too_late = {});

}  // namespace weft::distributed
