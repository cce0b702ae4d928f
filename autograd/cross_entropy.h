#pragma once
#include "weft/autograd/reduction.h"
#include "weft/core/tensor.h"

namespace weft {

struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  std::int64_t ignore_index = -100;  ///< rows with this target are ignored
  double label_smoothing = 0;        ///< share of the target's mass that is spread over all classes
  /// Output, bool, one per row: true if the target has the largest logit, false if ignored.
  Tensor hits = {};
};

/// -log softmax(logits)[target] of each row, in nats. The softmax is never stored.
/// With label smoothing s the target distribution is (1 - s) onehot + s / V.
/// mean divides by the number of rows that are not ignored; if all are, loss and gradient are 0.
/// A row whose logits are all -inf gives no class any probability: loss +inf, gradient 0.
///
/// Shapes  logits (..., V), any strides; targets (...); result (...) for none, else a scalar
/// Dtypes  logits f32, f64, bf16, f16; targets i32, i64. The loss is f64 for f64 logits, else f32
/// Device  cpu, cuda; nothing is copied to the host
/// Saves   logits, targets, and for each row the maximum and the sum of exp(logit - maximum)
/// Throws  Error on shapes or dtypes that do not match, V = 0, label_smoothing outside [0, 1), and
///         a target that is neither in [0, V) nor ignore_index: at once on the CPU; for a GPU at
///         the host's next synchronization. Once differentiable.
/// Source  Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});

/// The number of targets that are not ignore_index, kept on the device. Together with
/// Reduction::sum it gives the (sum, count) pair that is summed over micro-batches and ranks, then
/// divided.
///
/// Shapes  targets any; result a scalar
/// Dtypes  targets i32, i64; result i64
/// Throws  Error when targets are not integers
Tensor count_valid(const Tensor& targets, std::int64_t ignore_index = -100);

}  // namespace weft
