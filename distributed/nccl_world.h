#pragma once
#include <memory>

#include "weft/distributed/world.h"

namespace weft::distributed {

/// The ranks of `bootstrap` (usually mpi_world()), each with its own GPU. Collectives go through
/// NCCL on a stream separate from the caller's compute stream. Work::wait() makes the caller's
/// stream wait, not the host; only barrier() blocks both. `bootstrap` exchanges the ids that NCCL
/// needs to connect the ranks, and must outlive the result.
///
/// Sums are NCCL's: the same on every rank and in every run of one layout, but not the bits of the
/// other backends (bf16 is rounded at each step). A lost rank shows as an NCCL error or as a
/// timeout, which names the rank by what `bootstrap` answers. A failure here is a failure of
/// `bootstrap` too, and the reverse: all collectives are aborted, and what they leave is wrong. So
/// check_well() belongs after each wait of the host for values that depend on a collective, and
/// `devices` into save_checkpoint(). Collectives cannot be captured into a cuda::Graph.
/// Throws Error if the library has no CUDA, if libnccl.so.2 (version 2.18 or newer) is not
/// installed, and where NCCL refuses, for example when two ranks use one GPU.
std::unique_ptr<World> nccl_world(World& bootstrap, Device device,
                                  const WorldOptions& options = {});

/// The version of NCCL that nccl_world() would use: 22809 for 2.28.9. Throws Error as nccl_world().
int nccl_version();

}  // namespace weft::distributed
