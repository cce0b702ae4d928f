#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// Router logits, x weight^T + bias, in f32 even if x and weight are narrower: comparing close
/// experts and the exponentials after it need the precision. Only the narrow x and weight are
/// saved; backward computes in f32 again and rounds once.
///
/// Shapes   x (T, H), weight (E, H), bias (E) or null  ->  (T, E)
/// Dtypes   x f32, f64, bf16, f16, weight and bias alike; the result f64 for f64, else f32.
/// Gradients
///          have the dtype of their operand; those that an f32 main_grad takes are not rounded.
/// Device   cpu, cuda, meta
/// Saves    x, weight
/// Throws   Error on wrong shapes, mixed dtypes or devices
/// Source   f32 routing: Fedus et al. 2021, arXiv:2101.03961, section 2.4
Tensor router_logits(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace weft
