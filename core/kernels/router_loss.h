#pragma once
#include <algorithm>

#include "weft/core/kernels/router.h"
#include "weft/core/kernels/sequences.h"

namespace weft {

/// loss = coefficient * the mean over the tokens that are not padding of
///   E * sum_e s[t, e] counts[b, e] / sum_e counts[b, e]   with s the scores that sum to 1, or,
///   logsumexp(logits[t])^2                                where counts is null.
/// counts (B, E) i64. Token t belongs to row b = t / (T / B) or, if cu_seqlens (i32, B + 1) is not
/// null, to the row of its sequence. padding (T, bool) or null. terms (T, like loss) is scratch;
/// share receives coefficient / tokens, the factor of the backward pass. loss and share have one
/// element, f64 for f64 logits, else f32.
using RouterLossFwdKernel = void(const Tensor& logits, const Tensor& counts,
                                 const Tensor& cu_seqlens, const Tensor& padding, RouterScore score,
                                 double coefficient, const Tensor& terms, const Tensor& loss,
                                 const Tensor& share);
/// Writes all of dlogits.
using RouterLossBwdKernel = void(const Tensor& logits, const Tensor& counts,
                                 const Tensor& cu_seqlens, const Tensor& padding, RouterScore score,
                                 const Tensor& share, const Tensor& dloss, const Tensor& dlogits);
/// counts (B, E), initially zero: how often each expert occurs in experts (T, k) within each of the
/// B equal parts, or within each sequence of cu_seqlens. Values outside 0 .. E-1 are not counted.
using CountExpertsKernel = void(const Tensor& experts, const Tensor& cu_seqlens,
                                const Tensor& counts);

/// The rows of counts to which `tokens` tokens belong; null counts: one row for all.
inline Sequences counted_sequences(std::int64_t tokens, const Tensor& counts,
                                   const Tensor& cu_seqlens) {
  if (cu_seqlens) return {cu_seqlens.data<std::int32_t>(), cu_seqlens.numel() - 1, 0};
  const std::int64_t rows = counts ? std::max<std::int64_t>(counts.dim(0), 1) : 1;
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
