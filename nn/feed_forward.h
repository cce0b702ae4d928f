#pragma once
#include <memory>

#include "weft/autograd/fp8.h"
#include "weft/nn/module.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

/// The part of a block that processes each token by itself: an MLP, or experts.
struct FeedForward : Module {
  struct [[nodiscard]] Output {
    Tensor y;
    Tensor loss;  ///< add it to the mean loss: a scalar; null if there is none or nothing records
  };
  /// x (B, T, C) -> (B, T, C)
  virtual Output forward(const Tensor& x, const TokenContext& context) const = 0;
  /// True if forward() may return a loss.
  virtual bool has_loss() const { return false; }
  /// Its member name inside a block, as in state dictionaries: "mlp".
  virtual const char* name() const = 0;
  /// The layer that first multiplies x in FP8, as it is given: see Linear::fp8_reader().
  virtual const fp8::LayerState* fp8_reader() const { return nullptr; }
  /// Multiply-adds of forward for one token.
  virtual double multiply_adds() const = 0;
};

}  // namespace weft::nn
