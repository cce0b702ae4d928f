#pragma once
#include <array>
#include <cstdint>

#include "weft/core/philox.h"

namespace weft::data {

/// The numbers 0 .. n - 1 in a random order, each computed when it is asked for: no table, so that
/// billions of rows cost nothing. A Feistel network permutes a rectangle of at least n places,
/// about as wide as high, and numbers outside of n go through it again until they are inside.
/// Source: Black, Rogaway 2002, "Ciphers with arbitrary finite domains", with Philox as the round
/// function.
class Permutation {
 public:
  /// Order `epoch` of a key, whose `first` is not used.
  /// Throws Error unless 1 <= n <= 2^62.
  Permutation(std::int64_t n, const RandomKey& key, std::uint64_t epoch = 0);
  std::int64_t size() const { return static_cast<std::int64_t>(n_); }
  /// Throws Error unless 0 <= i < n.
  std::int64_t operator()(std::int64_t i) const;

 private:
  std::uint64_t n_, width_, height_;
  std::array<std::uint32_t, 4> key_;
};

}  // namespace weft::data
