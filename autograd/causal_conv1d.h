#pragma once
#include "weft/core/tensor.h"

namespace weft {

struct CausalConv1dOptions {
  bool silu = false;  ///< apply silu to the result, in the same pass
  /// i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1]) of a packed row, and no
  /// token reads another sequence. Each call copies values on a GPU to the host to check them.
  Tensor cu_seqlens = {};
  bool cu_checked = false;  ///< cu_seqlens is known to be valid: its values are not read back
  Tensor state = {};        ///< (B, K - 1, C): the inputs before the first token; null: zeros
};

/// Depthwise causal convolution: each channel has its own K taps, over the current and earlier
/// tokens. y[t, c] = sum over j of weight[c, j] x[t - K + 1 + j, c].
///
/// Shapes   x (B, T, C), weight (C, K) with K in 1 ... 8  ->  (B, T, C)
/// Dtypes   f32, f64, bf16, f16 (computed in f32); x, weight and state alike
/// Device   cpu, cuda
/// Saves    x, weight
/// Throws   Error on an x that is not 3-D, operands whose shapes do not match it, K out of range,
///          cu_seqlens that do not split the tokens of a row or are given with a state; once
///          differentiable
/// Source   Gu, Dao 2023, arXiv:2312.00752, section 3.4 (the short convolution before a scan)
Tensor causal_conv1d(const Tensor& x, const Tensor& weight,
                     const CausalConv1dOptions& options = {});

}  // namespace weft
