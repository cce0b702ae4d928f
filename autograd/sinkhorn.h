#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// exp(logits) with rows and columns scaled in turn, until every row sums to 1 / T and every column
/// to 1 / E or `rounds` is reached: every expert gets an equal share of the tokens. Rows of padding
/// are 0 and ignored. Has no gradient.
///
/// Shapes   logits (T, E), padding (T) or null  ->  (T, E)
/// Dtypes   logits f32, f64, bf16, f16; padding bool; the result f64 for f64, else f32
/// Device   cpu, cuda, meta
/// Throws   Error on wrong shapes or dtypes, E > 1024, rounds < 1
/// Source   Sinkhorn, Knopp 1967; as a router: Clark et al. 2022, arXiv:2202.01169, section 3
Tensor sinkhorn(const Tensor& logits, const Tensor& padding = {}, std::int64_t rounds = 1000);

}  // namespace weft
