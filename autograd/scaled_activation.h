#pragma once
#include "weft/autograd/elementwise.h"

namespace weft {

// The activation between the two matrix products of an expert, times the expert's routing
// probability. The second product is linear, so this equals scaling its output, and backward does
// not need that output.

/// y_i = scale_i silu(gate_i) up_i for rows [gate | up].
///
/// Shapes   h (N, 2F), scale (N)  ->  (N, F)
/// Dtypes   h f32, f64, bf16, f16 (computed in f32); scale f32, or f64 for f64
/// Device   cpu, cuda, meta
/// Saves    h, scale
/// Throws   Error on wrong shapes, dtypes or devices; once differentiable
/// Source   Shazeer 2020, arXiv:2002.05202
Tensor scaled_swiglu(const Tensor& h, const Tensor& scale);

/// y_i = scale_i gelu(h_i).
///
/// Shapes   h (N, F), scale (N)  ->  (N, F)
/// Dtypes   h f32, f64, bf16, f16 (computed in f32); scale f32, or f64 for f64
/// Device   cpu, cuda, meta
/// Saves    h, scale
/// Throws   Error on wrong shapes, dtypes or devices; once differentiable
/// Source   Hendrycks, Gimpel 2016, arXiv:1606.08415
Tensor scaled_gelu(const Tensor& h, const Tensor& scale, Gelu kind = Gelu::tanh);

}  // namespace weft
