#pragma once
#include "weft/autograd/reduction.h"
#include "weft/core/tensor.h"

namespace weft {

/// Squared error (y - target)^2, per element or reduced to one number.
///
/// Shapes   y (...), target the same  ->  (...) for Reduction::none, else a scalar
/// Dtypes   f32, f64, bf16, f16; one dtype for both
/// Device   cpu, cuda, meta; both on one device
/// Saves    y - target
/// Throws   Error when shapes, dtypes or devices differ: broadcasting in a loss hides mistakes
/// Source   definition; the mean of no elements is NaN
Tensor mse_loss(const Tensor& y, const Tensor& target, Reduction reduction = Reduction::mean);

}  // namespace weft
