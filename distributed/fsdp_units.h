#pragma once
#include <cstdint>
#include <vector>

#include "weft/core/named_tensor.h"
#include "weft/nn/module.h"

namespace weft::distributed {

/// The unit of each parameter, counted in the order of visit(). A unit is a module directly below
/// `model`, together with neighbours that add at most a sixteenth to it: a collective of a few
/// values costs its latency. A tied parameter belongs to the first of its modules; these share no
/// unit with others. `sizes`: elements of each parameter, the same on every rank.
/// Throws Error on a parameter of the model itself, and on a model that does not call
/// Shard::before_use.
std::vector<int> fsdp_units(nn::Module& model, const NamedTensors& parameters,
                            const std::vector<std::int64_t>& sizes);

}  // namespace weft::distributed
