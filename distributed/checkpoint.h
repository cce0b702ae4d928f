#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "weft/distributed/shard_files.h"
#include "weft/distributed/world.h"
#include "weft/io/checkpoint.h"

namespace weft::distributed {

/// io::save_checkpoint() by all ranks of the world, which call it together and share the file
/// system. Rank r writes model-r and optim-r with its slices. Every element must be in a slice of
/// some rank; replicas need not be written twice. The manifest is written last, when all files
/// exist: if a rank dies earlier, the previous checkpoint stays valid. `state` is rank 0's, and so
/// are `more`: further files by name. Throws the same Error on every rank when one cannot write, or
/// when `devices`, the world that moves the tensors if that is another one, has failed on one: its
/// tensors may then be wrong.
void save_checkpoint(World& world, const std::string& out_dir, std::int64_t step,
                     const SlicedTensors& model, const SlicedTensors& optimizer,
                     const std::string& state, int keep = 0,
                     const std::map<std::string, std::string>& more = {},
                     const World* devices = nullptr);

/// io::find_checkpoint() by rank 0; each rank verifies a share of the files. Throws the same Error
/// on every rank where io::find_checkpoint() does.
std::optional<io::Checkpoint> find_checkpoint(World& world, const std::string& out_dir);

}  // namespace weft::distributed
