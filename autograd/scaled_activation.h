#pragma once
#include "weft/autograd/elementwise.h"

namespace weft {

// What stands between the two products of an expert: the activation, times the probability with
// which the router chose the expert. The second product is linear, so this is the same as scaling
// its output, and nothing needs that output in backward.

/// y_i = scale_i silu(gate_i) up_i for rows [gate | up].
///
/// Shapes   h (N, 2F), scale (N)  ->  (N, F)
/// Dtypes   h f32, f64, bf16 (computed in f32); scale f32, or f64 for f64
/// Device   cpu, cuda, meta
/// Saves    h, scale
/// Throws   Error on other shapes, dtypes and devices
/// Source   Shazeer 2020, arXiv:2002.05202
Tensor scaled_swiglu(const Tensor& h, const Tensor& scale);

/// y_i = scale_i gelu(h_i).
///
/// Shapes   h (N, F), scale (N)  ->  (N, F)
/// Dtypes   h f32, f64, bf16 (computed in f32); scale f32, or f64 for f64
/// Device   cpu, cuda, meta
/// Saves    h, scale
/// Throws   Error on other shapes, dtypes and devices
/// Source   Hendrycks, Gimpel 2016, arXiv:1606.08415
Tensor scaled_gelu(const Tensor& h, const Tensor& scale, Gelu kind = Gelu::tanh);

}  // namespace weft
