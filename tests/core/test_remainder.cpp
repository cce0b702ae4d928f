// Splits all f32 numbers into two halves and merges them again.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/remainder.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::remainder_test {
namespace {

constexpr std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
constexpr float of_bits(std::uint32_t u) { return std::bit_cast<float>(u); }

// This many neighbours at a time fit into the L1 cache.
constexpr std::uint32_t kBlock = 2048;

// Numbers with the same upper 16 bits and the same next bit, split and merged.
struct Block {
  std::uint32_t first = 0;
  alignas(64) float x[kBlock], back[kBlock];
  alignas(64) bf16 upper[kBlock];
  alignas(64) std::int16_t remainder[kBlock], lower[kBlock];

  void run(std::uint32_t from) {
    first = from;
    for (std::uint32_t i = 0; i < kBlock; ++i) {
      x[i] = of_bits(first + i);
      lower[i] = static_cast<std::int16_t>((first + i) & 0xffffu);
    }
    simd().optimizer.split(x, upper, remainder, kBlock);
    simd().optimizer.merge(upper, remainder, back, kBlock);
  }
  // TransformerEngine's formulation of the rule, with its branch: the upper half is one larger
  // where the lower half is negative.
  bool follows_rule() const {
    const auto high = static_cast<std::uint16_t>((first >> 16) + ((first & 0x8000u) ? 1 : 0));
    return std::memcmp(back, x, sizeof x) == 0 &&
           std::memcmp(remainder, lower, sizeof lower) == 0 && upper[0].bits == high &&
           std::memcmp(upper, upper + 1, sizeof upper - sizeof(bf16)) == 0;
  }
  // Infinity and NaN stay infinity and NaN, in the upper half too.
  bool keeps_specials() const {
    for (std::uint32_t i = 0; i < kBlock; ++i) {
      if (std::isinf(x[i]) && !(back[i] == x[i] && upper[i] == x[i])) return false;
      if (std::isnan(x[i]) && !(std::isnan(back[i]) && std::isnan(upper[i]))) return false;
    }
    return true;
  }
};

}  // namespace

TEST_CASE("remainder: all 2^32 floats come back from their halves") {
  std::atomic<std::int64_t> wrong{0};
  parallel_for(1 << 16, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    Block block;
    for (auto high = static_cast<std::uint32_t>(begin); high < end; ++high)
      for (std::uint32_t low = 0; low < 1u << 16; low += kBlock) {
        block.run(high << 16 | low);
        const bool finite = (high & 0x7fffu) < 0x7f80u;
        wrong += !(finite ? block.follows_rule() : block.keeps_specials());
      }
  });
  CHECK(wrong == 0);
}

TEST_CASE("remainder: the upper half is the nearest bf16 with ties away from zero") {
  std::int64_t ties = 0, wrong = 0;
  for (std::uint32_t high = 0; high < 1u << 16; ++high) {
    if ((high & 0x7fffu) >= 0x7f80u) continue;
    for (const std::uint32_t low :
         {0x0u, 0x1u, 0x4321u, 0x7fffu, 0x8000u, 0x8001u, 0xfedcu, 0xffffu}) {
      const float x = of_bits(high << 16 | low);
      const bf16 upper = split_float(x).upper;
      if (upper.bits == bf16(x).bits) continue;
      ++ties;
      wrong += low != 0x8000u || std::abs(static_cast<float>(upper)) <= std::abs(x);
    }
  }
  // Half of the ties of each sign, those above an even upper half, round differently than ties to
  // even.
  CHECK(ties == 32'640);
  CHECK(wrong == 0);
}

TEST_CASE("remainder: golden halves") {
  struct Golden {
    std::uint32_t number;
    std::uint16_t upper;
    int remainder;
  };
  for (const Golden& g : {Golden{0x3eff7c46, 0x3eff, 31'814},
                          {0x3effab9b, 0x3f00, -21'605},
                          {0x3effbcde, 0x3f00, -17'186},
                          {0x3f808000, 0x3f81, -32'768},  // a tie, where ties to even give 0x3f80
                          {0xbf808000, 0xbf81, -32'768},  // away from zero
                          {0x3f818000, 0x3f82, -32'768},  // a tie that rounds up either way
                          {0x3f807fff, 0x3f80, 32'767},
                          {0x00000001, 0x0000, 1},
                          {0x80008000, 0x8001, -32'768},
                          {0x7f7fffff, 0x7f80, -1},  // the largest number; its half is infinite
                          {0x7f800000, 0x7f80, 0}}) {
    CAPTURE(g.number);
    const SplitFloat s = split_float(of_bits(g.number));
    CHECK(s.upper.bits == g.upper);
    CHECK(s.remainder == g.remainder);
    CHECK(bits_of(merge_float(s.upper, s.remainder)) == g.number);
  }
  // A GPU's result of 0 / 0: rounding up would give -0.
  CHECK(split_float(of_bits(0x7fffffff)).upper.bits == 0x7fff);
  CHECK(std::isnan(split_float(of_bits(0x7f800001)).upper));
}

TEST_CASE("remainder: every instruction set has the bits of the scalar rule in tails too") {
  // Limits of every exponent, then steps that repeat no pattern.
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 1u << 16; high += 0x7f)
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(of_bits(high << 16 | low));
  for (std::uint64_t u = 0; u < std::uint64_t{1} << 32; u += 10'007 * 257)
    x.push_back(of_bits(static_cast<std::uint32_t>(u)));
  for (const float special : {std::numeric_limits<float>::infinity(), -0.0f, of_bits(0x7fffffff),
                              of_bits(0xffffffff), of_bits(0x7f800001)})
    x.push_back(special);
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    const SimdTable* table = find_simd(isa);
    if (!table) continue;
    CAPTURE(std::string(isa));
    for (const std::size_t n : {x.size(), std::size_t{0}, std::size_t{1}, std::size_t{37}}) {
      std::vector<bf16> upper(n + 1);
      std::vector<std::int16_t> remainder(n + 1, 77);
      std::vector<float> back(n + 1, 5);
      upper[n].bits = 77;
      const auto count = static_cast<std::int64_t>(n);
      const float* const from = x.data() + x.size() - n;
      table->optimizer.split(from, upper.data(), remainder.data(), count);
      table->optimizer.merge(upper.data(), remainder.data(), back.data(), count);
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const SplitFloat want = split_float(from[i]);
        wrong += upper[i].bits != want.upper.bits || remainder[i] != want.remainder ||
                 bits_of(back[i]) != bits_of(merge_float(want.upper, want.remainder));
      }
      CHECK(wrong == 0);
      CHECK(upper[n].bits == 77);  // nothing is written after the end
      CHECK(remainder[n] == 77);
      CHECK(back[n] == 5);
    }
  }
}

TEST_CASE("remainder: tensors of several chunks and any number of threads") {
  const test::RestoreThreads restore;
  for (const std::int64_t n : {0, 1, 4096, 3 * 4096 + 11}) {
    const Tensor x = test::random({n}, 3, DType::f32);
    for (const int t : {1, 3}) {
      set_num_threads(t);
      const Tensor upper = Tensor::empty({n}, DType::bf16);
      const Tensor remainder = Tensor::empty({n, 2}, DType::u8);
      const Tensor back = Tensor::empty({n});
      cpu::split_remainder(x, upper, remainder);
      cpu::merge_remainder(upper, remainder, back);
      CHECK(test::different_bits(back, x) == "");
      CHECK(test::mismatch(upper.to(DType::f32), x, 1.0 / 256) == "");
    }
  }
}

}  // namespace weft::remainder_test
