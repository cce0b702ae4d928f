#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// y = x weight^T + bias. All leading axes of x are rows of one product.
///
/// Shapes   x (..., K), weight (N, K), bias (N) or null -> (..., N)
/// Dtypes   f32, f64, bf16, all alike; bf16 is multiplied and summed in f32 and rounded once
/// Device   cpu; all on one device
/// Saves    x, weight
/// Throws   Error on a 0-d x, a weight that is not (N, K), a bias that is not (N), mixed dtypes or
///          devices
/// Source   dx = dy weight, dweight = dy^T x, dbias = the sum of dy over rows
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace weft
