#pragma once
#include "weft/core/kernels/cross_entropy.h"

namespace weft {

/// The classes that a rank's logits cover when the classes are sharded over ranks.
struct ClassRange {
  std::int64_t first = 0;
  std::int64_t all = 0;
};

// R rows of the n classes from `range.first` on. Row-contiguous: logits (R, n), n may be 0; targets
// (R) i32 or i64, indices into all classes. "real" is f64 for f64 logits, else f32. Rows on a GPU
// may be farther apart, as in kernels/cross_entropy.h.

/// stats (R, 4) real: maximum m, sum of exp(x - m), the target's logit (-inf where another shard
/// has it), sum of x (0 without label smoothing). Zeros where the target is ignored.
using CrossEntropyPartStatsKernel = void(const Tensor& logits, const Tensor& targets,
                                         std::int64_t ignore_index, ClassRange range, bool with_sum,
                                         const Tensor& stats);
/// parts (W, R, 4): the stats of all shards, merged in order. losses (R) real, 0 where ignored;
/// stats (R, 2) real: maximum and sum of exp(x - m) over all classes; hits (R) bool or null, as in
/// cross_entropy_hits.
using CrossEntropyPartMergeKernel = void(const Tensor& parts, const Tensor& targets,
                                         std::int64_t ignore_index, std::int64_t classes,
                                         double label_smoothing, const Tensor& losses,
                                         const Tensor& stats, const Tensor& hits);
/// As cross_entropy_bwd, for the classes of this shard; dy has one value per row, or is null for 1.
using CrossEntropyPartBwdKernel = void(const CrossEntropyBwdIn& in, ClassRange range,
                                       const Tensor& dlogits);

namespace cpu {
CrossEntropyPartStatsKernel cross_entropy_part_stats;
CrossEntropyPartMergeKernel cross_entropy_part_merge;
CrossEntropyPartBwdKernel cross_entropy_part_bwd;
}  // namespace cpu
namespace cuda {
CrossEntropyPartStatsKernel cross_entropy_part_stats;
CrossEntropyPartMergeKernel cross_entropy_part_merge;
CrossEntropyPartBwdKernel cross_entropy_part_bwd;
}  // namespace cuda

}  // namespace weft
