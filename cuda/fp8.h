#pragma once
// FP8 codes on a GPU: the conversion instruction where there is one, else the arithmetic that the
// CPU uses. Both give the same codes.
#include "weft/cuda/device.h"

namespace weft::cuda {

#include "weft/core/fp8_code.inc"

/// v rounded to a code of Q: e4m3 or e5m2.
template <class Q>
__device__ inline std::uint8_t fp8_code(float v) {
#if !WEFT_CUDA_EMU && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  // The instruction converts two numbers, saturates infinity too, and has its own NaN.
  std::uint16_t pair;
  if constexpr (std::is_same_v<Q, e4m3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(pair) : "f"(0.0f), "f"(v));
    const auto sign = static_cast<std::uint8_t>(fp8_bits<std::uint32_t>(v) >> 24 & 0x80u);
    return v != v ? static_cast<std::uint8_t>(sign | 0x7fu) : static_cast<std::uint8_t>(pair);
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;\n" : "=h"(pair) : "f"(0.0f), "f"(v));
    const std::uint32_t u = fp8_bits<std::uint32_t>(v), size = u & 0x7fffffffu;
    const auto sign = static_cast<std::uint8_t>(u >> 24 & 0x80u);
    if (size >= 0x7f800000u)
      return static_cast<std::uint8_t>(sign | (size > 0x7f800000u ? 0x7eu : 0x7cu));
    return static_cast<std::uint8_t>(pair);
  }
#else
  if constexpr (std::is_same_v<Q, e4m3>)
    return e4m3_code(v);
  else
    return e5m2_code(v);
#endif
}

/// |x|, for the largest magnitudes from which scales come.
template <class R>
__device__ inline R absolute(R x) {
  return x < R(0) ? -x : x;
}

}  // namespace weft::cuda
