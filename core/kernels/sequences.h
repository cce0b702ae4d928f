#pragma once
#include <cstdint>

namespace weft {

/// The sequences of B * T token rows: each row of the batch is one, or cu_seqlens splits a single
/// row into several.
struct Sequences {
  const std::int32_t* cu_seqlens;  ///< count + 1 numbers, or null
  std::int64_t count;
  std::int64_t length;  ///< of each sequence, without cu_seqlens

  constexpr std::int64_t begin(std::int64_t i) const {
    return cu_seqlens ? cu_seqlens[i] : i * length;
  }
  constexpr std::int64_t end(std::int64_t i) const { return begin(i + 1); }

  /// The sequence of a token: the last one that begins no later, so empty ones are passed over.
  constexpr std::int64_t of(std::int64_t token) const {
    if (!cu_seqlens) return token / length;
    std::int64_t low = 0, high = count;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (cu_seqlens[middle] <= token ? low : high) = middle;
    }
    return low;
  }
};

}  // namespace weft
