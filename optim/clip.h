#pragma once
#include "weft/core/named_tensor.h"

namespace weft::optim {

/// main_grad() where set, else grad(); null for neither, and for a main_grad() that no gradient has
/// come to since zero_grad().
Tensor gradient_of(const Tensor& parameter);

/// A gradient norm and the factor that would bring it down to a limit, both one f64 on the device
/// of the gradients: nothing waits for them until somebody calls item().
struct GradClip {
  Tensor norm;   ///< before clipping
  Tensor scale;  ///< min(1, max_norm / (norm + 1e-6)); NaN when the norm is not finite
};

/// Sums of squares in f64: one for each tensor and, last, the total. Null for no tensors.
/// Throws Error on tensors that are not f32, f64 or bf16, or not contiguous.
Tensor sums_of_squares(const std::vector<Tensor>& tensors);
/// From a sum of squares (f64; the last element counts) to norm and scale; see measure_clip().
/// Throws Error on a negative max_norm.
GradClip clip_from(const Tensor& squares, double max_norm);

/// The Euclidean norm over all gradients (main_grad() where set, else grad()) taken together.
/// Changes no gradient: hand the result to Optimizer::step(), which multiplies on the way. Sums run
/// in f64 in the order of the parameters. Both tensors are null when no parameter has a gradient.
/// max_norm 0 sets no limit; scale is then 1, or NaN.
/// Throws Error on a negative max_norm.
GradClip measure_clip(const NamedTensors& parameters, double max_norm);

/// Makes the scale NaN unless `number`, a loss, is finite too: the optimizer then leaves everything
/// as it is. Nothing waits. Without gradients there is nothing to do. Throws Error unless number
/// has one element.
void require_finite(const GradClip& clip, const Tensor& number);

/// measure_clip(), with the gradients scaled in place at once (left alone when the norm is not
/// finite). Returns the norm before clipping.
Tensor clip_grad_norm(const NamedTensors& parameters, double max_norm);

/// Limits every element of every gradient to [-limit, limit].
/// Throws Error unless limit > 0.
void clip_grad_value(const NamedTensors& parameters, double limit);

}  // namespace weft::optim
