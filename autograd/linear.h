#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// y = x weight^T + bias. The leading axes of x are flattened to rows.
///
/// Shapes   x (..., K), weight (N, K), bias (N) or null -> (..., N)
/// Dtypes   f32, f64, bf16, f16, one dtype for all; bf16 is multiplied and summed in f32, rounded
///          once
/// Device   cpu, cuda, meta; all on one device
/// Saves    x, weight
/// Throws   Error on a 0-d x, a weight that is not (N, K), a bias that is not (N), mixed dtypes or
///          devices
/// Source   dx = dy weight, dweight = dy^T x, dbias = sum of the rows of dy
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace weft
