#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// Root mean square normalization over the last axis:  y = x * rsqrt(mean(x^2) + eps) * gain.
/// The gain is the weight, or with zero_centered 1 + weight, added in the dtype that computes, so
/// that 16 bits round no small weight away.
///
/// Shapes   x (..., C), weight (C) or null (gain 1)  ->  (..., C)
/// Dtypes   f32, f64, bf16, f16 (computed in f32); one dtype for both
/// Device   cpu, cuda
/// Saves    x, weight, rstd (...)
/// Throws   Error on an empty last axis, a weight that is not (C), mixed dtypes or devices.
/// Source   Zhang, Sennrich 2019, arXiv:1910.07467; eps is inside the square root.
///          zero_centered as in Gemma and Qwen3-Next
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-6,
                bool zero_centered = false);

struct RmsNormResidual {
  Tensor y;    ///< RMS norm of sum
  Tensor sum;  ///< x + residual, the next value of the residual stream
};

/// x + residual and its RMS norm in one pass over memory, forward and backward.
///
/// Shapes   x (..., C), residual like x, weight (C) or null  ->  two of (..., C)
/// Dtypes   f32, f64, bf16, f16; one dtype for all. In bf16 the norm reads the rounded sum.
/// Device   cpu, cuda
/// Saves    sum, weight, rstd (...)
/// Throws   Error as rms_norm, and on a residual whose shape differs from x.
/// Source   as rms_norm
RmsNormResidual rms_norm_residual(const Tensor& x, const Tensor& residual,
                                  const Tensor& weight = {}, double eps = 1e-6,
                                  bool zero_centered = false);

}  // namespace weft
