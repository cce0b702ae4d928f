#pragma once
#include "weft/nn/module.h"

namespace weft::nn {

/// Cross entropy in nats between logits (..., V) and class numbers (...) i32 or i64.
struct CrossEntropyLoss : Module {
  std::int64_t ignore_index = -100;  ///< targets that count for nothing
  double label_smoothing = 0;

  CrossEntropyLoss() = default;
  /// Mean over the targets that are not ignored; a scalar.
  Tensor operator()(const Tensor& logits, const Tensor& targets) const;

  /// A loss is a (sum, count) pair: ranks and micro-batches add both, and divide once at the end.
  struct Sum {
    Tensor loss;   ///< scalar, differentiable
    Tensor count;  ///< i64 scalar on the targets' device: how many are not ignored
  };
  Sum sum(const Tensor& logits, const Tensor& targets) const;

  void visit(Visitor&) override {}
  std::string describe() const override;
  CrossEntropyLoss like() const;
};

}  // namespace weft::nn
