#pragma once
#include "weft/core/named_tensor.h"

namespace weft::optim {

/// The Euclidean norm over all gradients (main_grad() where set, else grad()) taken together; a
/// one-element f64 tensor, 0 when there are none. Sums run in f64 in the order of the parameters.
Tensor grad_norm(const NamedTensors& parameters);

/// Scales all gradients by max_norm / norm when their norm is larger, and returns the norm before.
/// Gradients stay untouched when the norm is not finite, or max_norm is 0 (no limit).
/// Throws Error on a negative max_norm.
Tensor clip_grad_norm(const NamedTensors& parameters, double max_norm);

/// Limits every element of every gradient to [-limit, limit].
/// Throws Error unless limit > 0.
void clip_grad_value(const NamedTensors& parameters, double limit);

}  // namespace weft::optim
