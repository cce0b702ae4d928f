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

}  // namespace detail

/// bfloat16: the upper half of an f32, rounded to nearest even. Storage only; arithmetic is f32.
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

/// IEEE binary16.
struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  constexpr explicit f16(float value)
      : bits(static_cast<std::uint16_t>(
            detail::narrow<5, 10>(value, 0x7bff, 0x7c00, 0x7c00, 0x7e00))) {}
  constexpr operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    if ((bits & 0x7c00u) == 0x7c00u)
      return std::bit_cast<float>(sign | 0x7f800000u | ((bits & 0x3ffu) << 13));
    return detail::widen_finite<5, 10>(bits);
  }
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
