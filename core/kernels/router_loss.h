#pragma once
#include "weft/core/kernels/router.h"

namespace weft {

/// loss = coefficient * the mean over the tokens that are not padding of
///   E * sum_e s[t, e] counts[b, e] / sum_e counts[b, e]   with s the scores that sum to 1, or,
///   logsumexp(logits[t])^2                                where counts is null.
/// counts (B, E) i64; token t belongs to row b = t / (T / B). padding (T, bool) or null. terms (T,
/// like loss) is scratch; share becomes coefficient / tokens, which the backward multiplies with.
/// loss and share have one element of f64 for f64 logits, else f32.
using RouterLossFwdKernel = void(const Tensor& logits, const Tensor& counts, const Tensor& padding,
                                 RouterScore score, double coefficient, const Tensor& terms,
                                 const Tensor& loss, const Tensor& share);
/// All of dlogits.
using RouterLossBwdKernel = void(const Tensor& logits, const Tensor& counts, const Tensor& padding,
                                 RouterScore score, const Tensor& share, const Tensor& dloss,
                                 const Tensor& dlogits);
/// counts (B, E), zero at the start: how often each number stands in the B parts of experts (T, k);
/// others than 0 .. E-1 count for nothing.
using CountExpertsKernel = void(const Tensor& experts, const Tensor& counts);

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
