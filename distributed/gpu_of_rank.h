#pragma once
#include "weft/distributed/world.h"

namespace weft::distributed {

/// Assigns GPUs to ranks: the ranks of one machine take its visible GPUs round-robin. Every rank of
/// the world calls it; the world must be able to move host tensors. Throws Error without a GPU and,
/// with `alone`, on every rank when two ranks would share a GPU.
Device gpu_of_rank(World& world, bool alone);

}  // namespace weft::distributed
