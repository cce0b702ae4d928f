#pragma once
#include "weft/nn/module.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

/// While training, zeroes each element with probability p and scales the others by 1 / (1 - p).
/// Inside a RandomScope the mask depends only on seed, step, micro-batch, this module's dotted name
/// and the element's global index; outside, on the running counter. x is (rows, tokens, dim) or
/// (tokens, dim); only its first axis counts as global rows.
struct Dropout : Module {
  double p;
  explicit Dropout(double p);
  /// With `part`, x holds only those tokens of a batch: (1, count, dim).
  Tensor operator()(const Tensor& x, const std::optional<TokenPart>& part = {}) const;
  void visit(Visitor&) override {}
  std::string describe() const override;
};

}  // namespace weft::nn
