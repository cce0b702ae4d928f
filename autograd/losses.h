#pragma once
#include "weft/autograd/reduction.h"
#include "weft/core/tensor.h"

namespace weft {

// Losses made of public ops: their gradients come from the tape, of any order. mse_loss and
// cross_entropy have headers of their own. The mean of no elements is NaN.

/// |e| with e = y - target (l1_loss), and the same made quadratic near 0 (huber_loss): e^2 / 2 for
/// |e| <= delta, else delta (|e| - delta / 2).
///
/// Shapes   y (...), target the same  ->  (...) for Reduction::none, else a scalar
/// Dtypes   f32, f64, bf16, f16; one dtype for both
/// Device   cpu, cuda, meta; both on one device
/// Saves    y - target
/// Throws   Error when shapes, dtypes or devices differ; unless delta > 0
/// Source   Huber 1964, "Robust estimation of a location parameter"
Tensor l1_loss(const Tensor& y, const Tensor& target, Reduction reduction = Reduction::mean);
Tensor huber_loss(const Tensor& y, const Tensor& target, double delta = 1,
                  Reduction reduction = Reduction::mean);

/// -target ln p - (1 - target) ln(1 - p) for p = sigmoid(logits), without overflow and without loss
/// of small values.
///
/// Shapes   logits (...), target the same  ->  (...) for Reduction::none, else a scalar
/// Dtypes   f32, f64, bf16, f16; one dtype for both
/// Device   cpu, cuda, meta; both on one device
/// Saves    logits, target, ln p and ln(1 - p)
/// Throws   Error when shapes, dtypes or devices differ
/// Source   ln p = -softplus(-x), ln(1 - p) = -softplus(x)
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        Reduction reduction = Reduction::mean);

/// target (ln target - log_probs), the divergence of a distribution given by its logarithm from a
/// target. `mean` divides by the number of elements; the divergence of a batch is the sum over its
/// rows: Reduction::sum, divided by the number of rows.
///
/// Shapes   log_probs (...), target the same  ->  (...) for Reduction::none, else a scalar
/// Dtypes   f32, f64, bf16, f16; one dtype for both
/// Device   cpu, cuda, meta; both on one device
/// Saves    log_probs, target, ln target
/// Throws   Error when shapes, dtypes or devices differ
/// Source   Kullback, Leibler 1951; where the target is 0 the value and both gradients are 0
Tensor kl_div(const Tensor& log_probs, const Tensor& target, Reduction reduction = Reduction::mean);

/// -log_probs[target] of each row: cross_entropy() for what log_softmax() has made. `mean` divides
/// by the number of targets that are not ignored; when all are, the loss is 0.
///
/// Shapes   log_probs (..., V), targets (...)  ->  (...) for Reduction::none, else a scalar
/// Dtypes   log_probs f32, f64, bf16, f16; targets i32, i64
/// Device   cpu, cuda, meta; both on one device
/// Saves    targets
/// Throws   Error on other shapes or dtypes, and on a target that is neither in [0, V) nor
///          ignore_index
/// Source   definition
Tensor nll_loss(const Tensor& log_probs, const Tensor& targets,
                Reduction reduction = Reduction::mean, std::int64_t ignore_index = -100);

}  // namespace weft
