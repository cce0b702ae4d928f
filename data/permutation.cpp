#include "weft/data/permutation.h"

#include <cmath>

#include "weft/core/error.h"

namespace weft::data {
namespace {

// Four rounds make a permutation that no test tells from a random one for a large rectangle; small
// n have narrow ones and get more.
constexpr std::uint32_t kRounds = 8;

}  // namespace

Permutation::Permutation(std::int64_t n, const RandomKey& key, std::uint64_t epoch)
    : n_(static_cast<std::uint64_t>(n)), key_(random_block(key, epoch)) {
  check(n >= 1 && n <= std::int64_t{1} << 62, "permutation: n must be in [1, 2^62], got {}", n);
  width_ = static_cast<std::uint64_t>(std::ceil(std::sqrt(static_cast<double>(n))));
  height_ = (n_ + width_ - 1) / width_;
}

std::int64_t Permutation::operator()(std::int64_t i) const {
  check(i >= 0 && i < size(), "permutation: a number must be in [0, {}), got {}", size(), i);
  auto at = static_cast<std::uint64_t>(i);
  do {
    std::uint64_t x = at % width_, y = at / width_;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      // One coordinate moves by an amount that depends on the other.
      std::uint64_t &moved = round % 2 ? y : x, by = round % 2 ? x : y;
      const auto bits =
          philox4x32({static_cast<std::uint32_t>(by), round, key_[2], key_[3]}, {key_[0], key_[1]});
      const std::uint64_t side = round % 2 ? height_ : width_;
      moved = (moved + ((std::uint64_t{bits[0]} << 32 | bits[1]) >> 1) % side) % side;
    }
    at = y * width_ + x;
  } while (at >= n_);
  return static_cast<std::int64_t>(at);
}

}  // namespace weft::data
