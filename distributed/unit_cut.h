#pragma once
#include <string>
#include <utility>
#include <vector>

#include "weft/distributed/plan.h"
#include "weft/distributed/shared_rows.h"

namespace weft::distributed {

/// Which of some packed units a rank has, and which of those others have too.
struct UnitCut {
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  Ranges ranges;                   ///< of all rows, one for each kind of unit
  std::vector<SharedRows> shared;  ///< of this rank's rows
  std::int64_t all_shared = 0;     ///< rows that are shared, of all ranks
  std::int64_t shared_from = 0;    ///< the first of this rank's
  int sharers = 1;                 ///< ranks that have the same ones
};

/// Throws Error naming `layer` and all numbers when units do not divide among the ranks.
UnitCut cut_units(const std::string& layer, const std::vector<Units>& packed,
                  const ProcessGroup& tp);
/// Cuts a tensor of a model down to its part of the whole, inside the same tensor, so that every
/// handle to it follows; its values stay.
void keep_part(const Tensor& t, const nn::Part& part);
/// The rows of all units.
std::int64_t width_of(const std::vector<Units>& packed);

}  // namespace weft::distributed
