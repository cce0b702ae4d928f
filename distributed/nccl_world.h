#pragma once
#include <memory>

#include "weft/distributed/world.h"

namespace weft::distributed {

/// The ranks of `bootstrap` (mpi_world(), mostly), each with a GPU of its own: collectives go
/// through NCCL, in a stream beside the one that the caller computes in. Work::wait() makes the
/// caller's stream wait, not the caller; only barrier() stops both. bootstrap carries what NCCL
/// needs to find the other ranks, and has to live longer.
///
/// Sums are NCCL's: the same on every rank and in every run of one layout, not the bits of the
/// other backends (bf16 is rounded on the way). A rank that is lost shows as an error of NCCL's or
/// as a collective that does not end in time; which rank it is, NCCL does not say. What bootstrap
/// hears of (World::failure()) ends the collectives here too. Collectives
/// cannot be recorded into a cuda::Graph. Throws Error without CUDA in the library, without
/// libnccl.so.2 (version 2.18 or newer) on the machine, and where NCCL refuses: two ranks on one
/// GPU, for instance.
std::unique_ptr<World> nccl_world(World& bootstrap, Device device,
                                  const WorldOptions& options = {});

/// The version of NCCL that nccl_world() would use: 22809 for 2.28.9.
/// Throws Error as nccl_world().
int nccl_version();

}  // namespace weft::distributed
