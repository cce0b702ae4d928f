#pragma once
#include "weft/core/kernels/router.h"
#include "weft/core/tensor.h"

namespace weft {

/// How tokens are split into sequences; without cu_seqlens, equally. Sequences may be empty.
struct PackedTokens {
  Tensor cu_seqlens = {};  ///< i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1])
  bool checked = false;    ///< cu_seqlens is known to be valid: its values are not read back
};

/// The number of slots of each expert, in each of `sequences` equal ranges of the tokens, or in
/// each packed sequence.
///
/// Shapes   experts (T, k), T a multiple of sequences  ->  (sequences, count), packed: (n, count)
/// Dtypes   experts i64 (values outside [0, count), like -1 for a dropped slot, are ignored); the
///          result i64
/// Device   cpu, cuda, meta
/// Throws   Error on wrong shapes or dtypes, count < 1, sequences that do not divide T, cu_seqlens
///          that do not split T
Tensor count_experts(const Tensor& experts, std::int64_t count, std::int64_t sequences = 1,
                     const PackedTokens& packed = {});

/// count_experts() of the experts with the k largest logits of each token: without bias, groups or
/// dropping, as the balance losses count. Padding is ignored.
///
/// Shapes   logits (T, E), padding (T) or null  ->  (sequences, E), packed: (n, E)
/// Dtypes   logits f32, f64, bf16, f16; padding bool; the result i64
/// Device   cpu, cuda, meta
/// Throws   Error unless 1 <= k <= E, k <= 32, E <= 1024, and as count_experts
Tensor count_top_experts(const Tensor& logits, std::int64_t k, std::int64_t sequences = 1,
                         const Tensor& padding = {}, const PackedTokens& packed = {});

/// The load-balancing loss
///   L = coefficient * E * sum_e f[e] * P[e],   f = counts / sum(counts),   P = mean_t s[t, e],
/// where s are the scores of all experts, normalized to sum 1 if they are not a softmax. L =
/// coefficient when the counts or the scores are even. The scopes differ only in the counts:
///
///   aux        count_top_experts of this batch
///   sequence   counts (B, E), a row for each sequence; L is the mean over tokens, so that a long
///              sequence weighs more than a short one
///   global     running sums over micro-batches and data-parallel ranks
///
/// f has no gradient. P is the mean over the local tokens, so gradients that are weighted by each
/// rank's tokens and then averaged need no further factor, whichever group the counts were summed
/// over. Tokens with padding = true are not in the mean; if all are padding, L is 0.
///
/// Shapes   logits (T, E), counts (B, E) with T a multiple of B (token t in row t / (T / B)), or a
///          row for each packed sequence, padding (T) or null  ->  ()
/// Dtypes   logits f32, f64, bf16, f16; counts i64; padding bool; the result f64 for f64, else f32
/// Device   cpu, cuda, meta; sums have a fixed order
/// Saves    logits, counts, padding, cu_seqlens
/// Throws   Error on wrong shapes or dtypes; once differentiable
/// Source   Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961, eq. 4;
///          by sequence: DeepSeek-AI 2024, arXiv:2412.19437, eq. 17
Tensor balance_loss(const Tensor& logits, const Tensor& counts, RouterScore score,
                    double coefficient, const Tensor& padding = {},
                    const PackedTokens& packed = {});

/// coefficient * mean_t logsumexp(logits[t])^2 keeps logits small.
///
/// Shapes   logits (T, E), padding (T) or null  ->  ()
/// Dtypes   logits f32, f64, bf16, f16; padding bool; the result f64 for f64, else f32
/// Device   cpu, cuda, meta; sums have a fixed order
/// Saves    logits, padding
/// Throws   Error on wrong shapes or dtypes; once differentiable
/// Source   Zoph et al. 2022, arXiv:2202.08906, eq. 5
Tensor z_loss(const Tensor& logits, double coefficient, const Tensor& padding = {});

}  // namespace weft
