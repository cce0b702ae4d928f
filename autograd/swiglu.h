#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// y = silu(gate) * up with silu(g) = g / (1 + exp(-g)), in one pass.
///
/// Shapes   gate (..., F), up (..., F)  ->  (..., F)
/// Dtypes   f32, f64, bf16, f16 (computed in f32); one dtype for both
/// Device   cpu, cuda
/// Saves    gate, up
/// Throws   Error on different shapes or dtypes, a scalar, an unsupported dtype;
///          once differentiable
/// Source   Shazeer 2020, arXiv:2002.05202 (SwiGLU with beta 1).
Tensor swiglu(const Tensor& gate, const Tensor& up);

/// swiglu() of rows [gate | up], the output of one matrix product.
///
/// Shapes   x (..., 2F)  ->  (..., F)
/// Dtypes   f32, f64, bf16, f16 (computed in f32)
/// Device   cpu, cuda
/// Saves    x
/// Throws   Error on a last axis of odd length, a scalar, an unsupported dtype; once differentiable
/// Source   Shazeer 2020, arXiv:2002.05202.
Tensor swiglu(const Tensor& x);

}  // namespace weft
