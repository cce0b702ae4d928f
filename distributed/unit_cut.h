#pragma once
#include <string>
#include <utility>
#include <vector>

#include "weft/distributed/plan.h"
#include "weft/distributed/shared_rows.h"

namespace weft::distributed {

/// This rank's share of packed units, and the units that other ranks hold too.
struct UnitCut {
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  Ranges ranges;                   ///< of all rows, one per kind of unit
  std::vector<SharedRows> shared;  ///< among this rank's rows
  std::int64_t all_shared = 0;     ///< number of shared rows, over all ranks
  std::int64_t shared_from = 0;    ///< first shared row of this rank
  int sharers = 1;                 ///< number of ranks that share a row
};

/// Throws Error naming `layer` and all numbers when units do not divide among the ranks.
UnitCut cut_units(const std::string& layer, const std::vector<Units>& packed,
                  const ProcessGroup& tp);
/// The values of a part of a tensor, as a new one.
Tensor part_of(const Tensor& whole, const nn::ShardSpec& part);
/// Replaces a tensor of a model by its shard, in place: every handle sees the shard, and its values
/// are kept.
void keep_part(const Tensor& t, const nn::ShardSpec& part);
/// Number of rows of all units.
std::int64_t width_of(const std::vector<Units>& packed);

}  // namespace weft::distributed
