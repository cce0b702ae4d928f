#pragma once
#include "weft/core/tensor.h"

namespace weft {

// Masks: results are bool, and no gradient passes.

/// True where an element is NaN (isnan), infinite (isinf), or neither (isfinite).
///
/// Shapes   x (...)  ->  (...)
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8, bool  ->  bool
/// Device   cpu, cuda, meta
/// Saves    nothing
/// Throws   Error on other dtypes
/// Source   IEEE 754; integers are finite
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);

/// The logical and, or and not of elements. An element is true unless it is 0; NaN is true.
///
/// Shapes   a and b broadcast by NumPy's rule
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8, bool, each operand its own  ->  bool
/// Device   cpu, cuda, meta; both on one
/// Saves    nothing
/// Throws   Error on shapes that do not broadcast, on two devices, on other dtypes
/// Source   definition
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);

/// True if any element is true, or if all are: of the whole tensor, or along one axis.
///
/// Shapes   x (...)  ->  a scalar, or x's shape without `dim` (or with 1 there)
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8, bool  ->  bool
/// Device   cpu, cuda, meta
/// Saves    nothing
/// Throws   Error on a dim out of range, on other dtypes
/// Source   definition; of no elements, any is false and all is true
Tensor any(const Tensor& x);
Tensor any(const Tensor& x, int dim, bool keepdim = false);
Tensor all(const Tensor& x);
Tensor all(const Tensor& x, int dim, bool keepdim = false);

}  // namespace weft
