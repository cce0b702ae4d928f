#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

namespace weft {

// These functions are constexpr so that CUDA kernels can call them too.

/// v rounded to f32 toward the neighbour with an odd last bit (round to odd). Rounding the result
/// again to at most 22 bits equals rounding v directly, because an odd last bit is never a tie.
constexpr float round_to_odd(double v) {
  const float nearest = static_cast<float>(v);
  const double back = static_cast<double>(nearest);
  if (back == v || v != v) return nearest;
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  const bool too_large = v > 0 ? back > v : back < v;
  return std::bit_cast<float>((too_large ? bits - 1 : bits) | 1u);
}

/// Converts v to To with one rounding. A float becomes an integer by truncation, a bool by != 0.
template <class To, class From>
constexpr To convert(From v) {
  if constexpr (std::is_same_v<To, From>)
    return v;
  else if constexpr (std::is_same_v<To, bool>)
    return static_cast<double>(v) != 0;
  else if constexpr (std::is_arithmetic_v<To>)
    return static_cast<To>(v);
  else if constexpr (std::is_same_v<From, double> || std::is_same_v<From, std::int32_t> ||
                     std::is_same_v<From, std::int64_t>)
    return To(round_to_odd(static_cast<double>(v)));
  else
    return To(static_cast<float>(v));
}

}  // namespace weft
