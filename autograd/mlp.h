#pragma once
#include "weft/core/tensor.h"

namespace weft {

enum class Activation : std::uint8_t { gelu_tanh, gelu_erf, swiglu };

struct MlpOptions {
  Activation activation = Activation::gelu_tanh;
  /// Keep what goes into the activation only, and activate again in backward: F numbers a row less,
  /// at the price of one activation.
  bool recompute = false;
};

/// y = f(x up^T + up_bias) down^T + down_bias, where f is GELU, or for swiglu takes rows of
/// [gate | up] to silu(gate) * up. The hidden layer is activated right behind the first product,
/// on a GPU inside it where cuBLASLt can, and so is its gradient in backward.
///
/// Shapes   x (..., K), up (F, K), for swiglu (2F, K), up_bias as many or null, down (N, F),
///          down_bias (N) or null  ->  (..., N)
/// Dtypes   f32, f64, bf16, all alike; products of bf16 are summed in f32
/// Device   cpu, cuda; all on one
/// Saves    x, the weights, the hidden layer before and, unless `recompute`, behind the activation
/// Throws   Error on a 0-d x, weights and biases of another shape, mixed dtypes or devices
/// Source   Hendrycks and Gimpel 2016, arXiv:1606.08415; Shazeer 2020, arXiv:2002.05202
Tensor mlp(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
           const Tensor& down_bias, const MlpOptions& options = {});

}  // namespace weft
