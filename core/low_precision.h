#pragma once
#include <bit>
#include <cstdint>

namespace weft {

namespace detail {

/// Rounds an f32 to a narrower IEEE-like format with `E` exponent and `M` mantissa bits, round to
/// nearest even, subnormals included. `overflow` is what a finite value beyond the range becomes.
template <int E, int M>
constexpr std::uint32_t narrow(float value, std::uint32_t largest, std::uint32_t overflow,
                               std::uint32_t infinity, std::uint32_t nan) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 31) << (E + M);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | nan;
  if (magnitude == 0x7f800000u) return sign | infinity;
  constexpr int kBias = (1 << (E - 1)) - 1;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  std::uint32_t mantissa = (magnitude & 0x7fffffu) | (magnitude >> 23 ? 0x800000u : 0u);
  // Bits to drop: 23 - M for a normal result, more for a subnormal one.
  int drop = 23 - M;
  std::uint32_t base = 0;
  if (exponent < 1 - kBias) {
    drop += 1 - kBias - exponent;
    if (drop > 25) return sign;
  } else {
    base = static_cast<std::uint32_t>(exponent + kBias) << M;
    mantissa &= 0x7fffffu;
  }
  const std::uint32_t half = 1u << (drop - 1), rest = mantissa & ((1u << drop) - 1);
  std::uint32_t kept = mantissa >> drop;
  kept += rest > half || (rest == half && (kept & 1));
  const std::uint32_t result = base + kept;  // a carry moves into the exponent, as intended
  return sign | (result > largest ? overflow : result);
}

template <int E, int M>
constexpr float widen_finite(std::uint32_t bits) {
  constexpr int kBias = (1 << (E - 1)) - 1;
  const std::uint32_t sign = (bits >> (E + M)) << 31;
  const std::uint32_t exponent = (bits >> M) & ((1u << E) - 1), mantissa = bits & ((1u << M) - 1);
  if (exponent == 0) {
    // Subnormal: mantissa * 2^(1 - bias - M), exact in f32.
    const float scale = std::bit_cast<float>(static_cast<std::uint32_t>(127 + 1 - kBias - M) << 23);
    const float value = static_cast<float>(mantissa) * scale;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 127 - kBias) << 23) | (mantissa << (23 - M)));
}

// binary16 without branches, so that compilers turn loops of conversions into vector code. A NaN
// becomes quiet and keeps the rest of its upper bits, as with the F16C instructions.

constexpr std::uint16_t f16_bits(float value) {
  constexpr std::uint32_t kLeastNormal = 0x38800000, kBias = (127 - 15) << 23;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u, u = bits & 0x7fffffffu;
  const std::uint32_t normal = (u - kBias + 0xfffu + (u >> 13 & 1u)) >> 13;
  // Adding 1/2 rounds to multiples of 2^-24, the least subnormal number.
  const float tiny = std::bit_cast<float>(u < kLeastNormal ? u : 0u) + 0.5f;
  std::uint32_t r = u < kLeastNormal ? std::bit_cast<std::uint32_t>(tiny) - 0x3f000000u : normal;
  r = u >= 0x477ff000u ? 0x7c00u : r;  // 65520 and more
  r = u > 0x7f800000u ? 0x7e00u | (u >> 13 & 0x3ffu) : r;
  return static_cast<std::uint16_t>(sign | r);
}

constexpr float f16_value(std::uint16_t bits) {
  constexpr std::uint32_t kOne = 1u << 23, kBias = 127 - 15;
  const std::uint32_t sign = (bits & 0x8000u) << 16, u = (bits & 0x7fffu) << 13;
  const float least = std::bit_cast<float>((kBias + 1) * kOne);  // the least normal number
  const float tiny = std::bit_cast<float>(u + (kBias + 1) * kOne) - least;
  std::uint32_t r = u < kOne ? std::bit_cast<std::uint32_t>(tiny) : u + kBias * kOne;
  r = u >= 31 * kOne ? u + 2 * kBias * kOne : r;
  r = u > 31 * kOne ? r | 0x400000u : r;
  return std::bit_cast<float>(sign | r);
}

}  // namespace detail

/// bfloat16: the upper half of an f32, rounded to nearest even. Arithmetic is f32.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  constexpr explicit bf16(float value) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
               : static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  constexpr operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

/// IEEE binary16: 10 bits of mantissa and a largest number of 65504. Arithmetic is f32.
struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  constexpr explicit f16(float value) : bits(detail::f16_bits(value)) {}
  constexpr operator float() const { return detail::f16_value(bits); }
};

/// FP8 E4M3 (the "FN" variant): no infinity, largest value 448. Larger values saturate; NaN is
/// 0x7f.
/// Source: Micikevicius et al. 2022, arXiv:2209.05433.
struct e4m3 {
  std::uint8_t bits = 0;
  e4m3() = default;
  constexpr explicit e4m3(float value)
      : bits(static_cast<std::uint8_t>(detail::narrow<4, 3>(value, 0x7e, 0x7e, 0x7e, 0x7f))) {}
  constexpr operator float() const {
    if ((bits & 0x7fu) == 0x7fu)
      return std::bit_cast<float>(0x7fc00000u | (static_cast<std::uint32_t>(bits & 0x80u) << 24));
    return detail::widen_finite<4, 3>(bits);
  }
};

/// FP8 E5M2: IEEE-like with infinity, largest value 57344. Larger finite values saturate.
/// Source: Micikevicius et al. 2022, arXiv:2209.05433.
struct e5m2 {
  std::uint8_t bits = 0;
  e5m2() = default;
  constexpr explicit e5m2(float value)
      : bits(static_cast<std::uint8_t>(detail::narrow<5, 2>(value, 0x7b, 0x7b, 0x7c, 0x7e))) {}
  constexpr operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
    if ((bits & 0x7cu) == 0x7cu)
      return std::bit_cast<float>(sign | 0x7f800000u |
                                  (static_cast<std::uint32_t>(bits & 3u) << 21));
    return detail::widen_finite<5, 2>(bits);
  }
};

}  // namespace weft
