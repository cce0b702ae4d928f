#pragma once
#include <cstdint>
#include <string>

#include "weft/data/dataset.h"
#include "weft/distributed/shard_files.h"
#include "weft/distributed/world.h"

// What the ranks of a run must see alike. Every rank of the world makes the calls, before training:
// a difference found later costs the work up to then, or is never found.
namespace weft::train {

/// Throws Error (Fault::user), the same on all ranks, unless every rank sees the folder `path` that
/// rank 0 sees: rank 0 writes a file that the others must find within a few seconds.
void check_shared_folder(distributed::World& world, const std::string& path);

/// Throws Error (Fault::user), the same on all ranks, that names those whose number of the settings
/// is not rank 0's.
void check_same_settings(distributed::World& world, std::int64_t settings);

/// Throws Error (Fault::user), the same on all ranks, that names those whose files of weights have
/// other sizes than rank 0's, or other bytes in the part of each that is compared.
void check_same_weights(distributed::World& world, const std::string& path,
                        const distributed::ShardFiles& files);

/// Throws Error (Fault::user), the same on all ranks, unless they read the same `what`: as many
/// rows, and the same bytes in rows spread over all of it.
void check_same_data(distributed::World& world, const data::Dataset& data, const std::string& what);

}  // namespace weft::train
