#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "weft/distributed/pieces.h"
#include "weft/distributed/world.h"
#include "weft/io/checkpoint.h"

namespace weft::distributed {

/// io::save_checkpoint() by all ranks of the world, which share the file system and call it
/// together: rank r writes model-r and optim-r with its pieces. Every element must be among the
/// pieces of some rank; a replica need not be written twice. The manifest is written last, when all
/// files are there: whoever dies before leaves the checkpoint of before. `state` is rank 0's.
/// Throws Error, the same on every rank, when one of them cannot write.
void save_checkpoint(World& world, const std::string& out_dir, std::int64_t step,
                     const Pieces& model, const Pieces& optimizer, const std::string& state,
                     int keep = 0);

/// io::find_checkpoint() by rank 0; each rank reads a share of the files to verify them.
/// Throws Error, the same on every rank, where that does.
std::optional<io::Checkpoint> find_checkpoint(World& world, const std::string& out_dir);

}  // namespace weft::distributed
