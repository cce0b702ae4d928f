#pragma once
#include <memory>
#include <vector>

#include "weft/distributed/process_group.h"

namespace weft::distributed {

/// Rows of a rank's weight that other ranks have too: `count` of them from `own` on, which are
/// those from `whole` on among all the rows that are shared.
struct SharedRows {
  std::int64_t own = 0, whole = 0, count = 0;
};

/// Of one layer, for all of its steps.
using SharedRowsList = std::shared_ptr<const std::vector<SharedRows>>;

/// x as it is; backward adds up, over the ranks that share a row, what each of them says about it:
/// a key head that the query heads of several ranks use. One all-reduce of all shared rows.
///
/// Shapes   x (N, ...) with the rows of `mine`, which lie in [0, all) of the shared ones -> like x
/// Dtypes   f32, f64, bf16
/// Device   as ProcessGroup
/// Saves    nothing
/// Throws   Error on a dtype that no floating op computes with; once differentiable
/// Source   Ainslie et al. 2023, arXiv:2305.13245 (key heads of several query heads)
Tensor share_rows(const Tensor& x, ProcessGroup& group, const SharedRowsList& mine,
                  std::int64_t all);

}  // namespace weft::distributed
