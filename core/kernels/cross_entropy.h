#pragma once
#include "weft/core/tensor.h"

namespace weft {

// R rows of V classes. Row-contiguous: logits (R, V), targets (R) i32 or i64. "real" is f64 for f64
// logits, else f32. On a GPU, logits of two axes may have rows that are farther apart than V;
// dlogits then has the same distance.

/// count (1) i64 = number of targets other than ignore_index.
using CountValidKernel = void(const Tensor& targets, std::int64_t ignore_index,
                              const Tensor& count);
/// row (1) i64 = first row whose target is neither ignored nor in [0, classes); -1 if there is
/// none. On a GPU, where the host does not wait for the result, the kernel reports that target as
/// an error of `op` (a string with static lifetime); all other kernels treat such a row as ignored.
using FindBadTargetKernel = void(const Tensor& targets, std::int64_t ignore_index,
                                 std::int64_t classes, const char* op, const Tensor& row);
/// losses (R) real, 0 where ignored; stats (R, 2) real: maximum m, sum of exp(x - m).
using CrossEntropyFwdKernel = void(const Tensor& logits, const Tensor& targets,
                                   std::int64_t ignore_index, double label_smoothing,
                                   const Tensor& losses, const Tensor& stats);
/// loss (1) = sum of losses (R), divided by count (1) i64 unless that is null; 0 when count is 0.
using CrossEntropyReduceKernel = void(const Tensor& losses, const Tensor& count,
                                      const Tensor& loss);
struct CrossEntropyBwdIn {
  const Tensor &logits, &targets, &stats;
  const Tensor& dy;     ///< real: one value for each row, or one for all
  const Tensor& count;  ///< dy is divided by it; null: 1
  std::int64_t ignore_index;
  double label_smoothing;
  Device device() const { return logits.device(); }
};
/// dlogits (R, V) is like logits, and may be logits.
using CrossEntropyBwdKernel = void(const CrossEntropyBwdIn& in, const Tensor& dlogits);

/// Loss and gradient at once for the reduced loss with dy = 1: losses (R) real, and logits become
/// dlogits (divided by count unless that is null). The row is still in the cache when its gradient
/// is computed.
using CrossEntropyInPlaceKernel = void(const Tensor& logits, const Tensor& targets,
                                       const Tensor& count, std::int64_t ignore_index,
                                       double label_smoothing, const Tensor& losses);
/// hits (R) bool: true where no logit of the row exceeds the target's; false where ignored.
using CrossEntropyHitsKernel = void(const Tensor& logits, const Tensor& targets,
                                    std::int64_t ignore_index, const Tensor& hits);

/// The factor of a mean: 1 / count, 0 when count is 0; 1 for a sum, whose count is null.
constexpr double mean_scale(const std::int64_t* count) {
  if (!count) return 1;
  return *count > 0 ? 1 / static_cast<double>(*count) : 0;
}

namespace cpu {
CountValidKernel count_valid;
FindBadTargetKernel find_bad_target;
CrossEntropyFwdKernel cross_entropy_fwd;
CrossEntropyReduceKernel cross_entropy_reduce;
CrossEntropyBwdKernel cross_entropy_bwd;
CrossEntropyInPlaceKernel cross_entropy_in_place;
CrossEntropyHitsKernel cross_entropy_hits;
}  // namespace cpu
namespace cuda {
CountValidKernel count_valid;
FindBadTargetKernel find_bad_target;
CrossEntropyFwdKernel cross_entropy_fwd;
CrossEntropyReduceKernel cross_entropy_reduce;
CrossEntropyBwdKernel cross_entropy_bwd;
CrossEntropyInPlaceKernel cross_entropy_in_place;
CrossEntropyHitsKernel cross_entropy_hits;
}  // namespace cuda

}  // namespace weft
