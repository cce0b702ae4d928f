#pragma once
#include "weft/core/tensor.h"

namespace weft {

struct ValuesIndices {
  Tensor values, indices;
};

// Sorting along one axis. NaN counts as the largest value: last in ascending order, first in
// descending order and in topk.

/// The k largest elements of one axis, largest first; ties in order of position.
///
/// Shapes   x (... n ...)  ->  values and indices (... k ...)
/// Dtypes   x f32, f64, bf16, f16, i32, i64, u8; indices i64
/// Device   cpu, cuda, meta
/// Saves    indices; values are differentiable any number of times
/// Throws   Error unless 1 <= k <= n
ValuesIndices topk(const Tensor& x, std::int64_t k, int dim = -1);
/// Sorts one axis, ascending or descending; equal elements keep their order (a stable sort).
///
/// Shapes   x (... n ...)  ->  values and indices (... n ...)
/// Dtypes   x f32, f64, bf16, f16, i32, i64, u8; indices i64
/// Device   cpu, cuda, meta
/// Saves    indices; values are differentiable any number of times
/// Throws   Error on a scalar
ValuesIndices sort(const Tensor& x, int dim = -1, bool descending = false);
/// The indices of sort(). No gradient passes.
///
/// Shapes   x (... n ...)  ->  (... n ...)
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8  ->  i64
/// Device   cpu, cuda, meta
/// Saves    nothing
/// Throws   Error on a scalar
Tensor argsort(const Tensor& x, int dim = -1, bool descending = false);

}  // namespace weft
