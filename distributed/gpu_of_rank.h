#pragma once
#include "weft/distributed/world.h"

namespace weft::distributed {

/// A GPU for this rank where ranks are to have their own: those of a machine take the GPUs that
/// they see in turn. Called by every rank of the world, which has to move what lies on the host.
/// Throws Error without a GPU and, with `alone`, on every rank when two would have the same one.
Device gpu_of_rank(World& world, bool alone);

}  // namespace weft::distributed
