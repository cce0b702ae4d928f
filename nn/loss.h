#pragma once
#include "weft/autograd/cross_entropy.h"
#include "weft/nn/linear.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// Cross entropy in nats between logits (..., V) and class indices (...) i32 or i64.
struct CrossEntropyLoss : Module {
  std::int64_t ignore_index = -100;  ///< targets with this value are ignored
  double label_smoothing = 0;

  CrossEntropyLoss() = default;
  /// Mean over the targets that are not ignored; a scalar.
  Tensor operator()(const Tensor& logits, const Tensor& targets) const;
  /// The same loss of logits head(hidden), without storing all of them; use it for a large
  /// vocabulary: `loss(model.hidden(ids), model.head, targets)`.
  Tensor operator()(const Tensor& hidden, const Linear& head, const Tensor& targets) const;

  /// A loss is a (sum, count) pair: ranks and micro-batches add both, and divide once at the end.
  struct Sum {
    Tensor loss;   ///< scalar, differentiable
    Tensor count;  ///< i64 scalar on the targets' device: number of targets that are not ignored
  };
  Sum sum(const Tensor& logits, const Tensor& targets) const;
  /// `hits` as in CrossEntropyOptions.
  Sum sum(const Tensor& hidden, const Linear& head, const Tensor& targets,
          const Tensor& hits = {}) const;

  void visit(Visitor&) override {}
  std::string describe() const override;
  unsigned shard_members() const override { return Shard::kHeadLoss; }

 private:
  CrossEntropyOptions options(Reduction reduction) const;
};

}  // namespace weft::nn
