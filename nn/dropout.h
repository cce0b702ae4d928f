#pragma once
#include "weft/autograd/attention.h"
#include "weft/nn/module.h"
#include "weft/nn/shard.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

/// While training, zeroes each element with probability p and scales the others by 1 / (1 - p); p =
/// 1 gives zeros.
/// Inside a RandomScope the mask depends only on seed, step, micro-batch, this module's dotted name
/// and the element's global index; outside, on the running counter. So a module that is called
/// twice in a scope, as one that two layers share, drops the same elements both times; where calls
/// should differ, each needs a RandomScope with a RandomState::use of its own. x is (rows, tokens,
/// dim) or (tokens, dim); only its first axis counts as global rows.
struct Dropout : Module {
  double p;
  /// Throws Error when p is outside [0, 1].
  explicit Dropout(double p);
  /// With `part`, x holds only those tokens of a batch: (1, count, dim).
  Tensor operator()(const Tensor& x, const std::optional<TokenPart>& part = {}) const;
  /// The tokens of a row of attention; `rows` of equal length may lie side by side in it.
  struct WeightTokens {
    std::int64_t queries = 0, keys = 0, rows = 1;
  };
  /// While training, makes attention drop its weights with probability p, by numbers of their own
  /// for each row, head, query and key of the whole layer, of which `how` computes `heads`.
  /// Attention refuses p = 1.
  void drop_weights(weft::AttentionOptions& how, const Shard::Heads& heads,
                    const WeightTokens& tokens) const;
  void visit(Visitor&) override {}
  std::string describe() const override;
};

}  // namespace weft::nn
