#pragma once
#include <bit>
#include <cstdint>

namespace weft::cuda {

/// Of all devices together. Enough for 64 ranks in threads of one process, each with its own stream
/// beside those that they share.
inline constexpr int kMaxStreams = 256;

/// A set of streams, by their ids.
class StreamSet {
 public:
  void add(int id) { bits_[id / 64] |= std::uint64_t{1} << id % 64; }
  void clear() { *this = {}; }
  bool empty() const {
    for (const std::uint64_t word : bits_)
      if (word) return false;
    return true;
  }
  /// f(id) for each, in increasing order.
  template <class F>
  void for_each(F f) const {
    for (int i = 0; i < kMaxStreams / 64; ++i)
      for (std::uint64_t rest = bits_[i]; rest; rest &= rest - 1)
        f(64 * i + std::countr_zero(rest));
  }

 private:
  std::uint64_t bits_[kMaxStreams / 64] = {};
};

}  // namespace weft::cuda
