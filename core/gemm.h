#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// out (..., M, N) = a (..., M, K) * b (..., K, N), plus what out held when `accumulate`: the
/// matrix product below matmul, linear and every fused layer. Records nothing, and the caller has
/// checked the shapes.
///
/// Shapes   leading axes of a and b broadcast to those of out; K = 0 gives zeros
/// Strides  a transposed view is multiplied in place; other layouts of the last two axes are
/// copied.
///          out: rows without gaps
/// Dtypes   f32, f64, bf16, all alike; a bf16 product may go to an f32 out
void gemm(const Tensor& a, const Tensor& b, const Tensor& out, bool accumulate = false);

/// out (rows, N) = x (rows, K) weight (N, K)^T + bias (N): one rounding of each sum, bias included.
/// Records nothing, and the caller has checked the shapes. A null bias adds nothing.
void gemm_bias(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out);

/// The last two axes swapped; shares storage and is unknown to any tape.
Tensor transposed(const Tensor& t);

}  // namespace weft
