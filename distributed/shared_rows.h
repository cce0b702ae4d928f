#pragma once
#include <memory>
#include <vector>

#include "weft/distributed/process_group.h"

namespace weft::distributed {

/// Rows of a rank's weight that other ranks hold too: `count` rows from `own` on in this rank's
/// weight, which are rows from `whole` on among all shared rows.
struct SharedRows {
  std::int64_t own = 0, whole = 0, count = 0;
};

/// The shared rows of one layer, used in every step.
using SharedRowsList = std::shared_ptr<const std::vector<SharedRows>>;

/// Returns x. Backward sums the gradient of each shared row over the ranks that hold it, such as a
/// key head used by query heads of several ranks, with one all-reduce for all shared rows. If x is
/// a parameter of 16 bits with an f32 main_grad(), gradients are neither rounded nor summed in 16
/// bits on their way there.
///
/// Shapes   x (N, ...) with the rows of `mine`, which lie in [0, all) of the shared rows -> as x
/// Dtypes   f32, f64, bf16, f16
/// Device   as ProcessGroup
/// Saves    nothing
/// Throws   Error on a dtype that no floating op computes with; once differentiable
/// Source   Ainslie et al. 2023, arXiv:2305.13245 (key heads of several query heads)
Tensor share_rows(const Tensor& x, ProcessGroup& group, const SharedRowsList& mine,
                  std::int64_t all);

}  // namespace weft::distributed
