#pragma once
#include "weft/core/kernels/rounded_rows.h"

namespace weft {

/// swiglu: h (N, 2F) has rows [gate | up]; gelu: h (N, F).
enum class ScaledKind : std::uint8_t { swiglu, gelu_tanh, gelu_erf };

/// Row-contiguous. y (N, F) = act(h) times the scale (N) of its row, which is f32 (f64 for f64); a
/// null scale is 1. rounded: of y.
using ScaledActivationKernel = void(const Tensor& h, const Tensor& scale, ScaledKind kind,
                                    const Tensor& y, const RoundedRows& rounded);
/// dscale has the shape and dtype of scale. dh is not dy.
using ScaledActivationBwdKernel = void(const Tensor& h, const Tensor& scale, const Tensor& dy,
                                       ScaledKind kind, const Tensor& dh, const Tensor& dscale);

namespace cpu {
ScaledActivationKernel scaled_activation_fwd;
ScaledActivationBwdKernel scaled_activation_bwd;
}  // namespace cpu
namespace cuda {
ScaledActivationKernel scaled_activation_fwd;
ScaledActivationBwdKernel scaled_activation_bwd;
}  // namespace cuda

}  // namespace weft
