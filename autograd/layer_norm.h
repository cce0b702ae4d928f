#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// Layer normalization over the last axis:  y = (x - mean) * rstd * weight + bias.
///
/// Shapes   x (..., C), weight (C) or null, bias (C) or null  ->  (..., C)
/// Dtypes   f32, f64, bf16, f16 (computed in f32); one dtype for all
/// Device   cpu, cuda
/// Saves    x, weight, mean (...), rstd (...)
/// Throws   Error on an empty last axis, a weight or bias that is not (C), mixed dtypes or devices;
///          once differentiable
/// Source   Ba, Kiros, Hinton 2016, arXiv:1607.06450; eps is inside the square root.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);

struct LayerNormResidual {
  Tensor y;    ///< layer norm of sum
  Tensor sum;  ///< x + residual, the next value of the residual stream
};

/// x + residual and its layer norm in one pass over memory, forward and backward.
///
/// Shapes   x (..., C), residual like x, weight and bias as above  ->  two of (..., C)
/// Dtypes   f32, f64, bf16, f16; one dtype for all. In bf16 the norm reads the rounded sum.
/// Device   cpu, cuda
/// Saves    sum, weight, mean (...), rstd (...)
/// Throws   Error as layer_norm, and on a residual whose shape differs from x; once differentiable
/// Source   as layer_norm
LayerNormResidual layer_norm_residual(const Tensor& x, const Tensor& residual,
                                      const Tensor& weight = {}, const Tensor& bias = {},
                                      double eps = 1e-5);

}  // namespace weft
