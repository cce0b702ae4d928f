#pragma once
#include "weft/autograd/activation.h"

namespace weft {

struct MlpOptions {
  Activation activation = Activation::gelu_tanh;
  /// Save only the input of the activation and recompute the activation in backward: saves F
  /// numbers per row.
  bool recompute = false;
};

/// y = f(x up^T + up_bias) down^T + down_bias, where f is activation(). GELU follows the first
/// product directly, on a GPU in its epilogue where cuBLASLt supports that; so does its gradient in
/// backward.
///
/// Shapes   x (..., K), up (F, K), gated (2F, K), up_bias (rows of up) or null, down (N, F),
///          down_bias (N) or null  ->  (..., N)
/// Dtypes   f32, f64, bf16, f16, one dtype for all; bf16 products are summed in f32
/// Device   cpu, cuda; all on one device
/// Saves    x, the weights, the hidden layer before and, unless `recompute`, after the activation
/// Throws   Error on a 0-d x, weights and biases of another shape, mixed dtypes or devices
/// Source   as activation()
Tensor mlp(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
           const Tensor& down_bias, const MlpOptions& options = {});

}  // namespace weft
