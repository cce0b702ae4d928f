#pragma once
// The tanh form of GELU. 0.5 (1 + tanh(u)) is the sigmoid of 2 u: in f32 one exponential and one
// reciprocal in place of tanh, and more accurate where tanh(u) is near -1.
#include "weft/core/kernels/elementwise_math.h"
#include "weft/cuda/math.h"

namespace weft::cuda {

template <class C>
__device__ inline C gelu_tanh(C x) {
  if constexpr (std::is_same_v<C, float>)
    return x * fast_sigmoid(2 * C(kSqrt2OverPi) * (x + C(kGeluCubic) * x * x * x));
  else
    return apply<UnaryOp::gelu_tanh>(x);
}

/// dy times the derivative at x.
template <class C>
__device__ inline C gelu_tanh_bwd(C x, C dy) {
  if constexpr (std::is_same_v<C, float>) {
    const C square = fminf(x * x, C(kGeluFlat));
    const C s = fast_sigmoid(2 * C(kSqrt2OverPi) * x * (C(1) + C(kGeluCubic) * square));
    const C du = 2 * C(kSqrt2OverPi) * (C(1) + C(3 * kGeluCubic) * square);
    return dy * (s + x * s * (C(1) - s) * du);
  } else {
    return apply<BinaryOp::gelu_tanh_bwd>(x, dy);
  }
}

}  // namespace weft::cuda
