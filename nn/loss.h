#pragma once
#include "weft/nn/module.h"

namespace weft::nn {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
};

/// Cross entropy in nats between logits (..., V) and class numbers (...).
struct CrossEntropyLoss : Module {
  CrossEntropyOptions options;
  explicit CrossEntropyLoss(const CrossEntropyOptions& options = {}) : options(options) {}

  /// Mean over the targets that are not ignored; a scalar.
  Tensor operator()(const Tensor& logits, const Tensor& targets) const;

  /// A loss is a (sum, count) pair: ranks and micro-batches add both, and divide once at the end.
  struct Sum {
    Tensor loss;         ///< scalar, differentiable
    std::int64_t count;  ///< targets that are not ignored; all of them on the meta device
  };
  Sum sum(const Tensor& logits, const Tensor& targets) const;

  void visit(Visitor&) override {}
  std::string describe() const override { return "CrossEntropyLoss"; }
  CrossEntropyLoss like() const { return CrossEntropyLoss(options); }
};

}  // namespace weft::nn
