#pragma once
#include "weft/core/tensor.h"

namespace weft {

struct GatedDeltaOptions {
  double scale = 0;  ///< multiplies the queries; 0: 1 / sqrt(K)
  /// i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1]) of a packed row, with its
  /// own state. Each call copies values on a GPU to the host to check them.
  Tensor cu_seqlens = {};
  bool cu_checked = false;  ///< cu_seqlens is known to be valid: its values are not read back
  Tensor state = {};        ///< (sequences, Hv, K, V): the initial state; null: zeros
};

struct GatedDelta {
  Tensor y;
  Tensor state;  ///< (sequences, Hv, K, V), f64 for f64, else f32: the state after the last token
};

/// The gated delta rule, a recurrent layer with a state matrix S (K, V) for each head. Each token
/// decays the state, removes a fraction beta of the value stored under its key, and stores its own:
///
///   S = e^g S;  S = S + beta k (v - S^T k)^T;  y = scale S^T q
///
/// computed in chunks of 64 tokens, as matrix products: memory is linear in T. Value head h uses
/// key head h / (Hv / Hk), which is not repeated in memory.
///
/// Shapes   q, k (B, T, Hk, K), v (B, T, Hv, V), g, beta (B, T, Hv) -> (B, T, Hv, V)
/// Dtypes   q, k, v f32, f64, bf16, f16 (computed in f32), one dtype for all; g, beta and states
///          f64 for f64, else f32. g must be at most 0; -infinity resets the state
/// Device   cpu, cuda; all on one device
/// Saves    q, k, v, g, beta, and the state before each chunk
/// Throws   Error on operands whose shapes do not match, Hv not a multiple of Hk, cu_seqlens that
///          do not split the tokens of a row; once differentiable
/// Source   Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, section 3
GatedDelta gated_delta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                       const Tensor& beta, const GatedDeltaOptions& options = {});

/// The same rule token by token, with other public ops, as in the formulas: the reference for
/// gated_delta(). Slow; differentiable any number of times.
///
/// Shapes   as gated_delta
/// Dtypes   as gated_delta
/// Device   cpu, cuda; all on one device
/// Saves    several states for each token
/// Throws   Error as gated_delta
/// Source   as gated_delta
GatedDelta gated_delta_recurrent(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                 const Tensor& beta, const GatedDeltaOptions& options = {});

}  // namespace weft
