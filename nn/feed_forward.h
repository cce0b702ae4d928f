#pragma once
#include <memory>

#include "weft/nn/module.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

/// The part of a block in which every token is by itself: an MLP, or experts.
struct FeedForward : Module {
  struct [[nodiscard]] Output {
    Tensor y;
    Tensor loss;  ///< to be added to the mean loss: a scalar; null without any, or nothing recorded
  };
  /// x (B, T, C) -> (B, T, C)
  virtual Output forward(const Tensor& x, const TokenContext& context) const = 0;
  /// May there be a loss?
  virtual bool has_loss() const { return false; }
  /// The member that it is of a block in state dictionaries: "mlp".
  virtual const char* name() const = 0;
  /// Multiply-adds of forward for one token.
  virtual double multiply_adds() const = 0;
  /// A new one of the same configuration.
  virtual std::unique_ptr<FeedForward> make_like() const = 0;
};

}  // namespace weft::nn
