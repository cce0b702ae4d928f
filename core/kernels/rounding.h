#pragma once
#include <bit>
#include <cstdint>

#include "weft/core/low_precision.h"
#include "weft/core/philox.h"

namespace weft {

// How optimizers store numbers in few bits: blocks of e4m3 with a scale, and stochastic rounding.
// The functions are constexpr so that CUDA kernels can call them too;
// core/cpu/simd/rounding.inc has the same in lanes.

/// Adjacent elements of an e4m3 state that share one scale, 2^(exponent - 127). It is the smallest
/// power of two with which the largest magnitude of the block is at most 448. A power of two makes
/// scaling exact: a step that changes the scale changes no other number that stays normal.
/// Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", MXFP8.
inline constexpr std::int64_t kScaleBlock = 32;
constexpr std::int64_t scale_blocks(std::int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }

/// `largest` is at least 0. 448 is 1.75 * 2^8: a larger mantissa carries into the exponent.
constexpr std::uint8_t block_exponent(float largest) {
  const auto e = static_cast<int>((std::bit_cast<std::uint32_t>(largest) + 0x1fffffu) >> 23) - 8;
  return static_cast<std::uint8_t>(e < 1 ? 1 : e);
}
/// 0 for the exponent 0 of a state that was never written.
constexpr float block_scale(std::uint8_t exponent) {
  return std::bit_cast<float>(std::uint32_t{exponent} << 23);
}
constexpr float inverse_block_scale(std::uint8_t exponent) {
  return std::bit_cast<float>((254u - exponent) << 23);
}

/// The two neighbours of a number are chosen with probabilities that make the expected value exact.
/// A number that the format has stays unchanged. random: 16 bits.
/// Source: Gupta et al. 2015, arXiv:1502.02551, section 3.
constexpr bf16 stochastic_bf16(float x, std::uint32_t random) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  bf16 r{};
  r.bits = static_cast<std::uint16_t>((nan ? u | 0x400000u : u + random) >> 16);
  return r;
}

/// How a number becomes e4m3.
struct E4m3Rounding {
  bool stochastic = false;
  /// A number above 0 never becomes 0: an update divides by the root of a second moment.
  bool keeps_above_zero = false;
};

/// x, already divided by its block's scale, as e4m3. NaN and infinities become NaN.
constexpr e4m3 round_e4m3(float x, const E4m3Rounding& how, std::uint32_t random) {
  e4m3 r{};
  r.bits = 0x7f;
  if (!(x - x == 0)) return r;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  float a = std::bit_cast<float>(bits & 0x7fffffffu);
  const bool above_zero = a > 0;
  if (a > 448) a = 448;
  // Subnormal results are spaced evenly, like the numbers from 2^-6 to 2^-5.
  const bool tiny = a < 0x1p-6f;
  if (tiny) a += 0x1p-6f;
  std::uint32_t u = std::bit_cast<std::uint32_t>(a);
  u += how.stochastic ? (random << 4 | 8) : 0x7ffff + (u >> 20 & 1);
  std::uint32_t code = (u >> 20) - (tiny ? 968 : 960);
  if (how.keeps_above_zero && above_zero && code == 0) code = 1;
  r.bits = static_cast<std::uint8_t>((bits >> 24 & 0x80u) | code);
  return r;
}

/// Where the elements of a shard are in the whole parameter. The shard consists of equal periods;
/// each is cut into runs that are contiguous in the whole.
struct ShardPlace {
  static constexpr int kMostRuns = 8;
  std::int64_t period = 0, whole_period = 0;  ///< elements of the shard and of the whole
  std::int64_t ends[kMostRuns] = {};     ///< of the runs, in the shard's period; the last: period
  std::int64_t offsets[kMostRuns] = {};  ///< what turns a place in the shard's period into one
                                         ///< in the whole's
};

/// The index in the whole parameter of element i of the shard. Null: the shard is the whole.
constexpr std::int64_t whole_index(const ShardPlace* place, std::int64_t i) {
  if (!place) return i;
  const std::int64_t q = i / place->period, r = i - q * place->period;
  int run = 0;
  while (r >= place->ends[run]) ++run;
  return q * place->whole_period + r + place->offsets[run];
}
/// Number of elements from i on that are contiguous in the whole.
constexpr std::int64_t run_length(const ShardPlace* place, std::int64_t i) {
  if (!place) return INT64_MAX;
  const std::int64_t r = i % place->period;
  int run = 0;
  while (r >= place->ends[run]) ++run;
  return place->ends[run] - r;
}

/// What a step draws random bits for. Of the bits of an element for its states, the upper half
/// rounds the second moment and the lower half the first.
enum class Drawn : std::uint8_t { states, weight };

/// The stream of a step's random bits: SplitMix64's mix of a parameter's stream and the step.
constexpr std::uint64_t rounding_stream(std::uint64_t name, std::uint64_t step, Drawn what) {
  std::uint64_t x = name + 0x9E3779B97F4A7C15u * (2 * step + static_cast<std::uint64_t>(what));
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace weft
