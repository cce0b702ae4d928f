#pragma once
#include <functional>
#include <memory>
#include <string>

#include "weft/distributed/messages.h"
#include "weft/distributed/world.h"

namespace weft::distributed {

/// The world of one process of a job, over a transport: what mpi_world() and tcp_world() have in
/// common. Sets the number of threads of kernels to this rank's share of the processors, unless
/// set_num_threads() or OMP_NUM_THREADS sets another number. The destructor waits for the other
/// ranks' destructors and disconnects.
std::unique_ptr<World> message_world(const char* backend, std::unique_ptr<Messages> messages,
                                     const WorldOptions& options);

/// This process's world in the job of its launcher: mpi_world() if MPI knows of it, else
/// tcp_world().
std::unique_ptr<World> world_of_launch(const WorldOptions& options = {});

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

/// Bytes of tensor data that this rank has sent to other ranks; CommStats::bytes_sent predicts this
/// number. Throws Error unless the world is one of processes.
std::int64_t bytes_moved(const World& world);

}  // namespace weft::distributed
