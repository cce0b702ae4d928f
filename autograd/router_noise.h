#pragma once
#include "weft/core/philox.h"
#include "weft/core/tensor.h"

namespace weft {

/// y = x * u with u uniform in [1 - eps, 1 + eps), drawn for each element: element i uses random
/// number key.first + i. The numbers are not stored; backward draws them again.
///
/// Shapes   x any  ->  like x
/// Dtypes   f32, f64, bf16, f16 (u is rounded to it)
/// Device   cpu, cuda, meta
/// Saves    only the key; differentiable any number of times
/// Throws   Error when eps is outside [0, 1) or x is not floating
/// Source   Fedus et al. 2021, arXiv:2101.03961, section 2.2
Tensor jitter(const Tensor& x, double eps, const RandomKey& key);

/// Replaces logits by standard normal noise, plus expert_bias: benchmarks get an even load, or with
/// a bias a known uneven one, for any weights. The gradient passes through unchanged.
///
/// Shapes   logits (T, E), expert_bias (E) or null  ->  like logits
/// Dtypes   logits f32, f64, bf16, f16; expert_bias alike
/// Device   cpu, cuda, meta
/// Saves    nothing
/// Throws   Error when logits are not floating
/// Source   straight-through estimator: Bengio, Leonard, Courville 2013, arXiv:1308.3432
Tensor random_logits(const Tensor& logits, const RandomKey& key, const Tensor& expert_bias = {});

}  // namespace weft
