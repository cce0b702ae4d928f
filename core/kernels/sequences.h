#pragma once
#include <cstdint>

namespace weft {

/// The last i in [0, count) with value_of(i) <= value, where value_of grows with i; 0 if there is
/// none. Kernels on a GPU call it too.
template <class Int, class F>
constexpr Int last_at_most(Int count, Int value, F value_of) {
  Int low = 0, high = count;
  while (high - low > 1) {
    const Int middle = (low + high) / 2;
    (value_of(middle) <= value ? low : high) = middle;
  }
  return low;
}

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

  /// The sequence of a token: the last one that begins at or before it, which skips empty ones.
  constexpr std::int64_t of(std::int64_t token) const {
    if (!cu_seqlens) return token / length;
    return last_at_most(count, token, [this](std::int64_t i) { return begin(i); });
  }
};

}  // namespace weft
