#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// y = exp(x - max(x)) / sum(exp(x - max(x))) along one axis. A row that is all -inf (fully
/// masked), or holds inf or NaN, gives NaN.
///
/// Shapes   x (..., C, ...)  ->  like x
/// Dtypes   f32, f64, bf16, f16 (computed in f32)
/// Device   cpu, cuda
/// Saves    y
/// Throws   Error on a scalar x, an axis out of range, an unsupported dtype.
/// Source   dx = y (dy - sum(dy y)); differentiable any number of times.
Tensor softmax(const Tensor& x, int dim = -1);

/// y = x - log(sum(exp(x))) along one axis; -inf stays -inf unless its whole row is -inf.
///
/// Shapes   x (..., C, ...)  ->  like x
/// Dtypes   f32, f64, bf16, f16 (computed in f32)
/// Device   cpu, cuda
/// Saves    y
/// Throws   Error on a scalar x, an axis out of range, an unsupported dtype.
/// Source   dx = dy - exp(y) sum(dy); differentiable any number of times.
Tensor log_softmax(const Tensor& x, int dim = -1);

}  // namespace weft
