#pragma once
#include "weft/autograd/reduction.h"
#include "weft/core/tensor.h"

namespace weft {

struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  std::int64_t ignore_index = -100;  ///< rows with this target count for nothing
  double label_smoothing = 0;        ///< share of the target's mass that is spread over all classes
  /// bool, one a row, to be filled: has the target the largest logit? False where ignored.
  Tensor hits = {};
};

/// -log softmax(logits)[target] of each row, in nats, without ever storing the softmax.
/// With label smoothing s the target distribution is (1 - s) onehot + s / V.
/// mean divides by the number of rows that are not ignored; when all are, loss and gradient are 0.
/// A row whose logits are all -inf gives no class any probability: loss +inf, gradient 0.
///
/// Shapes  logits (..., V), any strides; targets (...); result (...) for none, else a scalar
/// Dtypes  logits f32, f64, bf16; targets i32, i64. The loss is f64 for f64 logits, else f32
/// Device  cpu, cuda; nothing is copied to the host
/// Saves   logits, targets, and per row the maximum and the sum of exp(logit - maximum)
/// Throws  Error on shapes or dtypes that do not fit, V = 0, label_smoothing outside [0, 1), and a
///         target that is neither in [0, V) nor ignore_index: at once in host memory, for a GPU
///         the next time that the host waits for it. Once differentiable.
/// Source  Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});

/// How many targets are not ignore_index, left on the device: with Reduction::sum it makes the
/// (sum, count) pair that is added up over micro-batches and ranks before the one division.
///
/// Shapes  targets any; result a scalar
/// Dtypes  targets i32, i64; result i64
/// Throws  Error when targets are not integers
Tensor count_valid(const Tensor& targets, std::int64_t ignore_index = -100);

}  // namespace weft
