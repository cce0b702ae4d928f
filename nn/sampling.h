#pragma once
#include <functional>
#include <span>
#include <vector>

#include "weft/core/philox.h"
#include "weft/core/tensor.h"

namespace weft::nn {

struct SamplingOptions {
  double temperature = 1;  ///< 0: always the most likely token (the first if several are equal)
  std::int64_t top_k = 0;  ///< sample among this many most likely tokens; 0: all
  double top_p = 1;  ///< sample among the most likely tokens that reach this total probability
  /// Whether a token may be drawn: an embedding may have rows that stand for no token. Null: all.
  std::function<bool(std::int64_t token)> allows = {};
};

/// Draws a token. Applies temperature, then top_k, then top_p to the remaining tokens; at least one
/// always remains. Equal logits are ranked by token index.
/// Shapes  logits (V)
/// Throws  Error on a negative temperature or top_k, top_p outside (0, 1], NaN or only -inf logits
///         among the tokens that are allowed
std::int64_t sample_token(const Tensor& logits, const SamplingOptions& options,
                          const RandomKey& key);

/// The distribution that sample_token() draws from, by token; 0 for excluded tokens.
std::vector<double> token_probabilities(const Tensor& logits, const SamplingOptions& options);
/// Draws an index of `weights` with probability proportional to its weight.
/// Throws  Error unless all weights are at least 0 and finite, and one is above 0
std::int64_t draw_token(std::span<const double> weights, const RandomKey& key);

}  // namespace weft::nn
