// Random numbers, dropout and the transpose of every instruction set, each compared with its
// definition.
#include <doctest/doctest.h>

#include <vector>

#include "weft/core/cpu/simd.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::simd_random_test {
namespace {

using test::simd_tables;

constexpr std::uint64_t kFar = (std::uint64_t{1} << 32) - 5;  // the block number exceeds 32 bits
constexpr std::uint64_t kSeed = 0x123456789abcdef0u, kStream = 0xfedcba9876543210u;

// Number i of the sequence, one Philox call per number.
float number(std::uint64_t i) {
  return static_cast<float>(random_bits({kSeed, kStream, 0}, i) >> 8);
}

}  // namespace

TEST_CASE("simd random: draw gives the numbers of random_bits in order") {
  for (const SimdTable* table : simd_tables())
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, kFar})
      for (const std::int64_t blocks : {16, 48}) {
        CAPTURE(table->name);
        CAPTURE(first);
        const std::int64_t n = 4 * blocks;
        std::vector<float> got(static_cast<std::size_t>(n) + 1, -1.0f);
        table->random.draw({kSeed, kStream, 3}, first, blocks, got.data());
        for (std::size_t i = 0; i + 1 < got.size(); ++i)
          if (got[i] != number(4 * first + i)) FAIL("number ", i, " is ", got[i]);
        CHECK(got.back() == -1.0f);
      }
}

TEST_CASE("simd random: sixteen sequences start anywhere in their blocks") {
  constexpr float kThreshold = 5e6f;
  for (const SimdTable* table : simd_tables())
    for (const std::int64_t step : {0, 1, 64, 131})
      for (const std::int64_t rows : {1, 3, 4, 21, 128}) {
        CAPTURE(table->name);
        CAPTURE(step);
        CAPTURE(rows);
        std::uint64_t first[16];
        for (std::uint64_t i = 0; i < 16; ++i)
          first[i] = 4 * kFar + 2 + i * static_cast<std::uint64_t>(step);
        std::vector<float> got(static_cast<std::size_t>(16 * rows) + 1, -1.0f);
        table->random.dropout_factors({kSeed, kStream, 3}, first, rows, kThreshold, 1.5f,
                                      got.data());
        for (std::size_t j = 0; j < static_cast<std::size_t>(rows); ++j)
          for (std::size_t i = 0; i < 16; ++i)
            if (got[16 * j + i] != (number(first[i] + j) < kThreshold ? 0.0f : 1.5f))
              FAIL("row ", j, " of sequence ", i, " is ", got[16 * j + i]);
        CHECK(got.back() == -1.0f);
      }
}

TEST_CASE_TEMPLATE("simd random: dropout of a row at any position and length", T, float, bf16) {
  const Tensor x = test::random({70}, 1).to(dtype_of<T>());
  std::vector<float> numbers;
  for (int i = 0; i < 70; ++i) numbers.push_back(static_cast<float>(i * 37 % 70));
  for (const SimdTable* table : simd_tables())
    for (const std::int64_t begin : {0, 1, 3})
      for (const std::int64_t n : {0, 1, 15, 16, 33, 64}) {
        CAPTURE(table->name);
        CAPTURE(begin);
        CAPTURE(n);
        std::vector<T> y(66, T(7.0f));
        table->of<T>().dropout(x.data<T>() + begin, numbers.data() + begin, 20, 1.25f, y.data(), n);
        for (std::int64_t i = 0; i < 66; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const bool dropped = numbers[static_cast<std::size_t>(begin + i)] < 20;
          const float kept = static_cast<float>(x.data<T>()[begin + i]) * 1.25f;
          const T want = i >= n ? T(7.0f) : T(dropped ? 0.0f : kept);
          CHECK(static_cast<float>(y[at]) == static_cast<float>(want));
        }
      }
}

TEST_CASE("simd attention: the transpose of whole groups and tails") {
  const Tensor x = test::random({40, 37}, 2).to(DType::f32);
  for (const SimdTable* table : simd_tables())
    for (const std::int64_t n : {1, 15, 16, 21, 32, 40})
      for (const std::int64_t d : {1, 3, 4, 18, 32, 37}) {
        CAPTURE(table->name);
        CAPTURE(n);
        CAPTURE(d);
        std::vector<float> out(38 * 41, 7.0f);
        table->attention.transpose(x.data<float>(), 37, n, d, 0.3f, out.data(), 41);
        for (std::int64_t c = 0; c < 38; ++c)
          for (std::int64_t i = 0; i < 41; ++i) {
            const float got = out[static_cast<std::size_t>(c * 41 + i)];
            const float want = c < d && i < n ? x.data<float>()[i * 37 + c] * 0.3f : 7.0f;
            if (got != want) FAIL("row ", c, ", column ", i, " is ", got);
          }
      }
}

}  // namespace weft::simd_random_test
