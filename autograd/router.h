#pragma once
#include "weft/core/kernels/router.h"
#include "weft/core/tensor.h"

namespace weft {

/// The experts of each token, and their weights.
struct Routing {
  Tensor probs;    ///< (T, k): one per slot, best first; differentiable
  Tensor experts;  ///< (T, k) i64; -1: this slot was dropped, and its probability is 0
};

/// Selects for each token the k experts with the largest scores. Ties go to the lowest index; NaN
/// counts as the largest, so that it reaches the loss.
///
///   softmax         the k largest logits, softmax over these k: the row sums to 1
///   softmax, pre    softmax over all E first; its k largest values
///   sigmoid         s = 1 / (1 + exp(-x)); the selected ones divided by their sum + 1e-20 (k > 1),
///                   unless normalise is false
///   sqrt_softplus   s = sqrt(log(1 + exp(x))); normalized like sigmoid
///
/// and all times `scaling`. expert_bias is added to the scores for the selection only: it does not
/// change the probabilities and gets no gradient. With groups, a group's score is the sum of its
/// group_best (0: topk / group_topk) best (biased) scores, and only the best group_topk groups can
/// be selected. Tokens with padding = true get no expert.
///
/// Shapes   logits (T, E), expert_bias (E) or null, padding (T) or null  ->  two of (T, k)
/// Dtypes   logits f32, f64, bf16, f16; expert_bias f32; padding bool; probs f64 for f64, else f32
/// Device   cpu, cuda, meta
/// Saves    logits, experts
/// Throws   Error unless 1 <= k <= E, k <= 32, E <= 1024; on k = 1 with a softmax over the selected
///          experts (its gradient is 0), on a bias with softmax, on normalise = false with it, on
///          groups that do not divide E, cannot hold k experts or have fewer than group_best;
///          once differentiable
/// Source   Shazeer et al. 2017, arXiv:1701.06538; sigmoid scores, groups and bias: DeepSeek-AI
///          2024, arXiv:2412.19437, and Wang et al. 2024, arXiv:2408.15664
Routing route(const Tensor& logits, const Tensor& expert_bias, const RouterOptions& options,
              const Tensor& padding = {});

/// Selects the k experts with the largest entries of sinkhorn(logits). balanced = false selects by
/// the logits, for evaluation, where tokens must not depend on each other. Probabilities come from
/// the logits: sigmoid for k = 1, else softmax over all experts, not renormalized.
///
/// Shapes   logits (T, E), padding (T) or null  ->  two of (T, k)
/// Dtypes   as route
/// Device   cpu, cuda, meta
/// Saves    logits, experts
/// Throws   Error unless 1 <= k <= E, k <= 32, E <= 1024; once differentiable
/// Source   Clark et al. 2022, arXiv:2202.01169, section 3
Routing route_sinkhorn(const Tensor& logits, std::int64_t topk, bool balanced,
                       const Tensor& padding = {});

namespace detail {
/// Checks RouterOptions for E experts.
void check_router(const char* op, std::int64_t experts, const RouterOptions& options,
                  bool has_bias);
/// logits must be (T, E) of a floating dtype; padding must be null or bool (T) on the same device.
void check_router_logits(const char* op, const Tensor& logits, const Tensor& padding);
}  // namespace detail

}  // namespace weft
