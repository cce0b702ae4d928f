#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace weft {

/// One block of Philox 4x32 with 10 rounds: 128 random bits that depend only on key and counter.
/// Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// Identifies a sequence of random numbers. Element i depends on (seed, stream, first + i) only, so
/// the numbers are the same for any sharding, thread count or device.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::uint64_t first = 0;
  /// If not null, a GPU reads the stream from this address, so that a captured step draws new
  /// numbers at each replay.
  const std::uint64_t* stream_on_device = nullptr;
};

/// The key with its stream read from the device; for GPU kernels.
constexpr RandomKey with_device_stream(const RandomKey& k) {
  return {k.seed, k.stream_on_device ? *k.stream_on_device : k.stream, k.first};
}

/// Block `block` of a key's sequence: the bits of elements 4 block ... 4 block + 3.
constexpr std::array<std::uint32_t, 4> random_block(const RandomKey& k, std::uint64_t block) {
  return philox4x32(
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
       static_cast<std::uint32_t>(k.stream), static_cast<std::uint32_t>(k.stream >> 32)},
      {static_cast<std::uint32_t>(k.seed), static_cast<std::uint32_t>(k.seed >> 32)});
}

/// The 32 random bits of element i of a key's sequence.
constexpr std::uint32_t random_bits(const RandomKey& k, std::uint64_t i) {
  const std::uint64_t n = k.first + i;
  return random_block(k, n >> 2)[n & 3];
}

/// Uniform in [0, 1) with 24 bits: exact in f32.
constexpr float uniform_from_bits(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

/// Uniform in (0, 1): the midpoint of one of 2^32 cells, so never 0 and never 1.
constexpr double open_uniform(std::uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

/// Two standard normal numbers from the bits of two neighbouring elements (Box-Muller).
constexpr std::array<double, 2> normal_pair(std::uint32_t a, std::uint32_t b) {
  const double radius = std::sqrt(-2 * std::log(open_uniform(a)));
  const double angle = 2 * std::numbers::pi * open_uniform(b);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace weft
