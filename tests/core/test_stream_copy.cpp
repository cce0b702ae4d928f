#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "weft/core/cpu/stream_copy.h"

namespace weft::stream_copy_test {

TEST_CASE("stream_copy: copies any number of bytes from and to any address, and no other") {
  constexpr std::size_t kMost = 70'000, kSpace = 256, kGuard = 77;
  std::vector<unsigned char> from(kMost + kSpace), to(kMost + kSpace);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * i % 251);
  for (const std::size_t bytes : {0ul, 1ul, 63ul, 64ul, 65ul, 16'383ul, 16'384ul, 16'500ul, kMost})
    for (const std::size_t a : {0ul, 1ul, 17ul, 64ul})
      for (const std::size_t b : {0ul, 3ul, 48ul, 64ul}) {
        std::fill(to.begin(), to.end(), kGuard);
        cpu::stream_copy(to.data() + b, from.data() + a, bytes);
        CHECK(std::memcmp(to.data() + b, from.data() + a, bytes) == 0);
        CHECK(std::count(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(b), kGuard) ==
              static_cast<std::ptrdiff_t>(b));
        CHECK(std::count(to.begin() + static_cast<std::ptrdiff_t>(b + bytes), to.end(), kGuard) ==
              static_cast<std::ptrdiff_t>(to.size() - b - bytes));
      }
}

}  // namespace weft::stream_copy_test
