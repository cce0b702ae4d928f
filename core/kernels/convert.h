#pragma once
#include <bit>
#include <cstdint>
#include <limits>
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

/// The same for an i64, of which a double may lose digits: beyond 2^53, where its last eleven bits
/// are not all 0, they become 0 and the bit above them 1. That is exact as a double and, so far
/// below the bits that count, rounds alike.
constexpr float round_to_odd(std::int64_t v) {
  constexpr std::int64_t kExact = std::int64_t{1} << 53, kRest = 0x7ff;
  const bool exact = (v >= -kExact && v <= kExact) || (v & kRest) == 0;
  return round_to_odd(static_cast<double>(exact ? v : (v & ~kRest) | (kRest + 1)));
}

/// The integer next to v toward 0; if To has none, its nearest integer, and 0 for NaN. C++ leaves
/// these undefined, and processors differ in them.
template <class To, class Float>
constexpr To truncated(Float v) {
  constexpr auto kLeast = std::numeric_limits<To>::lowest(), kMost = std::numeric_limits<To>::max();
  constexpr Float kAbove = static_cast<Float>(kMost / 2 + 1) * 2;  // kMost + 1 exactly
  if (v != v) return 0;
  if (v >= kAbove) return kMost;
  return v < static_cast<Float>(kLeast) ? kLeast : static_cast<To>(v);
}

/// Converts v to To with one rounding. A float becomes an integer by truncated(), a bool by != 0;
/// an integer wraps around to a narrower one.
template <class To, class From>
constexpr To convert(From v) {
  if constexpr (std::is_same_v<To, From>)
    return v;
  else if constexpr (std::is_same_v<To, bool>)
    return static_cast<double>(v) != 0;
  else if constexpr (std::is_integral_v<To> && std::is_same_v<From, double>)
    return truncated<To>(v);
  else if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>)
    return truncated<To>(static_cast<float>(v));
  else if constexpr (std::is_arithmetic_v<To>)
    return static_cast<To>(v);
  else if constexpr (std::is_same_v<From, std::int64_t>)
    return To(round_to_odd(v));
  else if constexpr (std::is_same_v<From, double> || std::is_same_v<From, std::int32_t>)
    return To(round_to_odd(static_cast<double>(v)));
  else
    return To(static_cast<float>(v));
}

}  // namespace weft
