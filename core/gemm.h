#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// out (..., M, N) = a (..., M, K) * b (..., K, N), plus the old value of out when `accumulate`.
/// The matrix product under matmul, linear and every fused layer. Records nothing; the caller has
/// checked the shapes.
///
/// Shapes   leading axes of a and b broadcast to those of out; K = 0 gives zeros
/// Strides  a transposed view is multiplied in place; other layouts of the last two axes are copied
///          out: rows without gaps
/// Dtypes   f32, f64, bf16, f16, the same for all; a product of 16 bits may go to an f32 out
void gemm(const Tensor& a, const Tensor& b, const Tensor& out, bool accumulate = false);

/// out (rows, N) = x (rows, K) weight (N, K)^T + bias (N), with one rounding of each sum including
/// the bias. Records nothing; the caller has checked the shapes. A null bias adds nothing.
void gemm_bias(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out);

/// A view with the last two axes swapped; not recorded on any tape.
Tensor transposed(const Tensor& t);

}  // namespace weft
