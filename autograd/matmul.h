#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// Matrix product over the last two axes, by NumPy's rules.
///
/// Shapes   (..., M, K) x (..., K, N) -> (..., M, N); leading axes broadcast. A 1-D a is a row
///          (K) -> (1, K), a 1-D b a column (K) -> (K, 1), and that axis is dropped from the
///          result.
/// Dtypes   f32, f64, bf16, f16, one dtype for both; bf16 is multiplied and summed in f32, rounded
///          once
/// Device   cpu, cuda, meta; both on one device
/// Saves    a, b
/// Throws   Error on a 0-d operand, different inner dimensions, leading axes that do not broadcast,
///          mixed dtypes or devices
/// Source   NumPy reference, numpy.matmul
Tensor matmul(const Tensor& a, const Tensor& b);

/// The inner product of two vectors, and the matrix of all products a[i] b[j].
///
/// Shapes   dot: (N) x (N) -> a scalar; outer: (M) x (N) -> (M, N)
/// Dtypes   dot: as matmul; outer: as mul
/// Device   as matmul and mul
/// Saves    a, b
/// Throws   Error on operands of other than one axis, and where matmul or mul throws
/// Source   definition
Tensor dot(const Tensor& a, const Tensor& b);
Tensor outer(const Tensor& a, const Tensor& b);

}  // namespace weft
