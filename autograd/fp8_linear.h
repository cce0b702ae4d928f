#pragma once
#include "weft/autograd/delayed_gradients.h"
#include "weft/autograd/fp8.h"

namespace weft {

/// linear() with FP8 operands: x and weight rounded to e4m3, dy to e5m2, by the recipe. Products
/// are exact and summed in f32; the result is rounded once. The gradient is that of a product of
/// the rounded operands; rounding itself counts as the identity.
///
/// Shapes   x (..., K), weight (N, K), bias (N) or null -> (..., N); K, N and the rows of x are
///          multiples of 16
/// Dtypes   f32, bf16, one dtype for all
/// Device   cpu, cuda, meta; all on one device
/// Saves    the rounded x and weight, 1 byte each; with BackwardOverride::high_precision x and
///          weight
/// Throws   Error on the shapes and dtypes above, on a GPU without FP8, and with delayed scales on
///          a state without them; once differentiable
/// Source   TransformerEngine, pytorch/module/linear.py
Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const fp8::Recipe& recipe, const fp8::LayerState* state = nullptr);

/// grouped_linear() without bias with FP8 operands: each expert's weight, and its rows of x and dy,
/// have scales of their own. `later`: where backward computes the gradient of the weight.
///
/// Shapes   x (R, I), weight (E, O, I), rows (E) with sum R -> (R, O); I, O and all rows are
///          multiples of 16
/// Dtypes   f32, bf16; rows i64 on the host
/// Device   cpu, cuda, meta
/// Saves    the rounded x and weight
/// Throws   Error as fp8_linear() and grouped_linear()
/// Source   TransformerEngine, pytorch/module/grouped_linear.py
Tensor fp8_grouped_linear(const Tensor& x, const Tensor& weight, const Tensor& rows,
                          const fp8::Recipe& recipe, const fp8::LayerState* state = nullptr,
                          const DelayedGradients& later = {});

}  // namespace weft
