#pragma once
#include "weft/core/kernels/rounding.h"
#include "weft/nn/shard_spec.h"

namespace weft::distributed {

/// Where the elements of a shard are in the whole parameter, in the form that kernels read.
/// Throws Error naming `parameter` for a shard that has no such form: with a cut besides its last
/// one that is not a single range of axis 0, or with more than ShardPlace::kMostRuns ranges.
ShardPlace place_of(const nn::ShardSpec& part, const std::string& parameter);

}  // namespace weft::distributed
