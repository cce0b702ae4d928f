#pragma once
#include <cstdint>

#include "weft/core/kernels/quantize.h"

namespace weft {

/// The scale for a largest magnitude. constexpr, so that CUDA kernels can call it; the division is
/// rounded to nearest on both.
constexpr float fp8_scale_of(float amax, float largest, const Fp8Scaling& how) {
  constexpr float kInfinity = __builtin_huge_valf(), kLargestFloat = 3.40282347e38f;
  if (amax < how.epsilon) amax = how.epsilon;  // a NaN passes
  if (amax != amax || amax == 0 || amax == kInfinity) return 1;
  float scale = largest / amax;
  if (scale == kInfinity) scale = kLargestFloat;
  if (how.power_of_two)
    scale = __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, scale) & 0x7f800000u);
  for (std::int32_t i = 0; i < how.margin; ++i) scale *= 0.5f;
  for (std::int32_t i = 0; i > how.margin; --i) scale *= 2;
  return scale;
}

}  // namespace weft
