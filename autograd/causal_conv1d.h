#pragma once
#include "weft/core/tensor.h"

namespace weft {

struct CausalConv1dOptions {
  bool silu = false;  ///< y = silu(convolution), in the same pass
  /// i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1]) of a packed row, and no
  /// token reads another sequence. Read back from a GPU once a call to be checked.
  Tensor cu_seqlens = {};
  bool cu_checked = false;  ///< they are known to split the tokens, and are not read for it
  Tensor state = {};        ///< (B, K - 1, C): what stands before the first token; null: zeros
};

/// Every channel is convolved with its own K taps over the tokens up to the present one:
/// y[t, c] = sum over j of weight[c, j] x[t - K + 1 + j, c].
///
/// Shapes   x (B, T, C), weight (C, K) with K in 1 ... 8  ->  (B, T, C)
/// Dtypes   f32, f64, bf16 (computed in f32); x, weight and state alike
/// Device   cpu, cuda
/// Saves    x, weight
/// Throws   Error on an x that is not 3-D, other operands that do not fit it, K out of range,
///          cu_seqlens that do not split the tokens of a row or come with a state; once
///          differentiable
/// Source   Gu, Dao 2023, arXiv:2312.00752, section 3.4 (the short convolution before a scan)
Tensor causal_conv1d(const Tensor& x, const Tensor& weight,
                     const CausalConv1dOptions& options = {});

}  // namespace weft
