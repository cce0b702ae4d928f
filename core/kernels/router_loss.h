#pragma once
#include <algorithm>

#include "weft/core/kernels/router.h"
#include "weft/core/kernels/sequences.h"

namespace weft {

// loss = coefficient * the mean over the tokens that are not padding of
//   E * sum_e s[t, e] counts[b, e] / sum_e counts[b, e]   with s the scores that sum to 1, or,
//   logsumexp(logits[t])^2                                where counts is null.
// Token t belongs to row b = t / (T / B) of counts or, with cu_seqlens, to the row of its sequence.
// "real" is f64 for f64 logits, else f32.

struct RouterLossIn {
  const Tensor& logits;      ///< (T, E)
  const Tensor& counts;      ///< (B, E) i64, or null
  const Tensor& cu_seqlens;  ///< (B + 1) i32, or null
  const Tensor& padding;     ///< (T) bool, or null
  RouterScore score;
  Device device() const { return logits.device(); }
};
struct RouterLossOut {
  const Tensor& loss;   ///< (1), real
  const Tensor& share;  ///< (1), real: coefficient / tokens, a factor of the backward pass
  const Tensor& terms;  ///< scratch (T), real
};
using RouterLossFwdKernel = void(const RouterLossIn& in, double coefficient,
                                 const RouterLossOut& out);
/// Writes all of dlogits (T, E).
using RouterLossBwdKernel = void(const RouterLossIn& in, const Tensor& share, const Tensor& dloss,
                                 const Tensor& dlogits);
/// counts (B, E), initially zero: how often each expert occurs in experts (T, k) within each of the
/// B equal parts, or within each sequence of cu_seqlens. Values outside 0 .. E-1 are not counted.
using CountExpertsKernel = void(const Tensor& experts, const Tensor& cu_seqlens,
                                const Tensor& counts);

/// The rows of counts to which `tokens` tokens belong; null counts: one row for all.
inline Sequences counted_sequences(std::int64_t tokens, const Tensor& counts,
                                   const Tensor& cu_seqlens) {
  if (cu_seqlens.defined()) return {cu_seqlens.data<std::int32_t>(), cu_seqlens.numel() - 1, 0};
  const std::int64_t rows = counts.defined() ? std::max<std::int64_t>(counts.dim(0), 1) : 1;
  return {nullptr, rows, tokens / rows};
}

namespace cpu {
RouterLossFwdKernel router_loss_fwd;
RouterLossBwdKernel router_loss_bwd;
CountExpertsKernel count_experts;
}  // namespace cpu
namespace cuda {
RouterLossFwdKernel router_loss_fwd;
RouterLossBwdKernel router_loss_bwd;
CountExpertsKernel count_experts;
}  // namespace cuda

}  // namespace weft
