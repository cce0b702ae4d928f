#pragma once
#include "weft/core/named_tensor.h"

namespace weft::optim {

/// main_grad() where set, else grad(). Null if there is neither, or if main_grad() has received no
/// gradient since zero_grad().
Tensor gradient_of(const Tensor& parameter);

/// A gradient norm and the factor that reduces it to a limit, each one f64 on the device of the
/// gradients. The host does not wait for them until item() is called.
struct GradClip {
  Tensor norm;   ///< before clipping
  Tensor scale;  ///< min(1, max_norm / (norm + 1e-6)); NaN when the norm is not finite
};

/// Sums of squares in f64: one per tensor, and the total last. Null for no tensors.
/// Throws Error on tensors that are not f32, f64, bf16 or f16, or not contiguous.
Tensor sums_of_squares(const std::vector<Tensor>& tensors);
/// Computes norm and scale from a sum of squares (f64; the last element counts); see
/// measure_clip().
/// Throws Error on a negative max_norm.
GradClip clip_from(const Tensor& squares, double max_norm);

/// The Euclidean norm over all gradients (main_grad() where set, else grad()). Changes no gradient:
/// pass the result to Optimizer::step(), which applies the scale. Sums are f64 in the order of the
/// parameters. Both tensors are null when no parameter has a gradient. max_norm 0 means no limit;
/// scale is then 1, or NaN.
/// Throws Error on a negative max_norm.
GradClip measure_clip(const NamedTensors& parameters, double max_norm);

/// Makes the scale NaN unless `number`, a loss, is finite too, so that the optimizer skips the
/// step. Does not wait. Does nothing without gradients.
/// Throws Error unless number has one element.
void require_finite(const GradClip& clip, const Tensor& number);

/// measure_clip(), and scales the gradients in place (unless the norm is not finite). Returns the
/// norm before clipping.
Tensor clip_grad_norm(const NamedTensors& parameters, double max_norm);

/// Clamps every element of every gradient to [-limit, limit].
/// Throws Error unless limit > 0.
void clip_grad_value(const NamedTensors& parameters, double limit);

}  // namespace weft::optim
