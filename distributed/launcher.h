#pragma once

// How this process was started: as one of several by a launcher, or alone. Reads the environment
// only.
namespace weft::distributed {

/// Whether mpirun or srun started this process as one of several that MPI connects.
bool under_mpi();
/// Whether this process is one of several that TCP connects (tcp_world()): RANK and WORLD_SIZE are
/// set, to more than one rank, and MPI knows of no launch.
bool under_tcp();
/// Whether this process is one of several that a backend can connect.
inline bool is_launched() { return under_mpi() || under_tcp(); }
/// Whether WORLD_SIZE names several ranks and nothing says which of them this process is.
bool lacks_rank();
/// This process's rank in the launch, or -1. For messages that one process prints before the ranks
/// are connected.
int launched_rank();
/// Number of processes that the launcher started; 1 if it does not say.
int launched_ranks();
/// Whether this process is to print what all processes of a launch would print alike. Ranks that
/// nothing connects cannot agree, but srun numbers them.
bool prints_for_all();

}  // namespace weft::distributed
