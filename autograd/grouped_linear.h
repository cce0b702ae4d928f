#pragma once
#include "weft/autograd/delayed_gradients.h"
#include "weft/core/tensor.h"

namespace weft {

/// linear() with one weight per group of consecutive rows: the experts of an MoE layer.
///   y_i = weight_e x_i + bias_scale_i bias_e   for every row i of group e
/// An empty group costs nothing; its weight gets a gradient of zeros. `later`: where backward
/// computes the gradient of the weight.
///
/// Shapes   x (N, I), weight (E, O, I), bias (E, O) or null, rows (E) with sum N, bias_scale (N) or
///          null (1)  ->  (N, O)
/// Dtypes   f32, f64, bf16, f16, one dtype for all (16 bits are multiplied and summed in f32,
///          rounded once; bias_scale_i bias_e is rounded before); rows i64 on the host
/// Device   cpu, cuda, meta
/// Saves    x and weight; with a bias also the bias and its scale
/// Throws   Error on wrong shapes, mixed dtypes or devices, rows that do not sum to N, a scale
///          without a bias; once differentiable
/// Source   dx_i = weight_e^T dy_i, dweight_e = the sum of dy_i x_i^T over the group
Tensor grouped_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& rows,
                      const Tensor& bias_scale = {}, const DelayedGradients& later = {});

}  // namespace weft
