#pragma once
#include "weft/core/tensor.h"

namespace weft {

struct GatedDeltaOptions {
  double scale = 0;  ///< of the queries; 0: 1 / sqrt(K)
  /// i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1]) of a packed row, with a
  /// state of its own. Read back from a GPU once a call to be checked.
  Tensor cu_seqlens = {};
  bool cu_checked = false;  ///< they are known to split the tokens, and are not read for it
  Tensor state = {};        ///< (sequences, Hv, K, V): what the first token finds; null: zeros
};

struct GatedDelta {
  Tensor y;
  Tensor state;  ///< (sequences, Hv, K, V), f64 for f64 and else f32: what the last token leaves
};

/// The gated delta rule, a recurrent layer whose state is a matrix S (K, V) for each head. Each
/// token lets it decay, takes out a share beta of what its key finds there, and puts its value in:
///
///   S = e^g S;  S = S + beta k (v - S^T k)^T;  y = scale S^T q
///
/// computed chunk by chunk of 64 tokens, as matrix products: memory is linear in T.
/// Value head h goes with key head h / (Hv / Hk), which is not repeated in memory.
///
/// Shapes   q, k (B, T, Hk, K), v (B, T, Hv, V), g, beta (B, T, Hv) -> (B, T, Hv, V)
/// Dtypes   q, k, v f32, f64, bf16 (computed in f32), all alike; g, beta and states f64 for f64,
///          else f32. g is at most 0
/// Device   cpu, cuda; all on one device
/// Saves    q, k, v, g, beta, and the state before each chunk
/// Throws   Error on operands that do not fit, Hv not a multiple of Hk, cu_seqlens that do not
/// split
///          the tokens of a row; once differentiable
/// Source   Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, section 3
GatedDelta gated_delta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                       const Tensor& beta, const GatedDeltaOptions& options = {});

/// The same token by token, as the formulas stand there, with other public ops: the definition that
/// gated_delta() is measured against. Slow, and any number of times differentiable.
///
/// Shapes   as gated_delta
/// Dtypes   as gated_delta
/// Device   cpu, cuda; all on one device
/// Saves    several states for every token
/// Throws   Error as gated_delta
/// Source   as gated_delta
GatedDelta gated_delta_recurrent(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                 const Tensor& beta, const GatedDeltaOptions& options = {});

}  // namespace weft
