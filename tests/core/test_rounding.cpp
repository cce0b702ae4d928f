// Blocks of e4m3 and stochastic rounding: their definition, and every instruction set against it.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/rounding.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::rounding_test {
namespace {

using test::simd_tables;

constexpr RandomKey kKey{7, 11, 0};

// Numbers of every magnitude, then the special ones.
std::vector<float> numbers(std::size_t n) {
  std::vector<float> x;
  for (std::uint64_t i = 0; x.size() < n; ++i) {
    const std::uint32_t bits = random_bits(kKey, i);
    const float mantissa = 1 + static_cast<float>(bits & 0xffff) * 0x1p-16f;
    const float y = std::ldexp(mantissa, static_cast<int>(bits >> 16 & 31) - 24);
    x.push_back(bits >> 31 ? -y : y);
  }
  const float inf = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f, -0.0f, 1e-42f, NAN, inf, -inf, 448.0f, 0x1p-9f, -0x1p-10f};
  for (std::size_t i = 0; i < std::size(special) && n > 40; ++i) x[70 + 3 * i] = special[i];
  return x;
}

std::vector<std::uint32_t> words(std::size_t n) {
  std::vector<std::uint32_t> w(n);
  for (std::size_t i = 0; i < n; ++i) w[i] = random_bits({3, 5, 0}, i);
  w[0] = 0;
  w[1] = ~0u;
  return w;
}

// The mean of a rounding over all 16-bit numbers, minus x, relative to the step of the format.
template <class F>
double bias(double x, double step, F rounded) {
  double sum = 0;
  for (std::uint32_t r = 0; r < 1u << 16; ++r) sum += static_cast<double>(rounded(r)) - x;
  return sum / (1 << 16) / step;
}

}  // namespace

TEST_CASE("rounding: the exponent of a block is the smallest whose scale reaches the largest") {
  for (const float x :
       {1e-30f, 0.3f, 1.0f, 447.0f, 448.0f, 448.1f, 449.0f, 895.0f, 896.0f, 1e30f}) {
    CAPTURE(x);
    const std::uint8_t e = block_exponent(x);
    CHECK(x <= 448 * block_scale(e));
    CHECK(x > 224 * block_scale(e));
    CHECK(block_scale(e) * inverse_block_scale(e) == 1);
  }
  CHECK(block_exponent(448) == 127);
  CHECK(block_exponent(0) == 1);
  CHECK(block_scale(0) == 0);
  CHECK(std::isfinite(inverse_block_scale(block_exponent(std::numeric_limits<float>::max()))));
}

TEST_CASE("rounding: e4m3 to nearest equals the cast") {
  for (const float x : numbers(4000)) {
    CAPTURE(x);
    const e4m3 got = round_e4m3(x, {}, 0);
    if (!std::isfinite(x))
      CHECK((got.bits & 0x7f) == 0x7f);
    else
      CHECK(got.bits == e4m3(x).bits);
  }
}

TEST_CASE("rounding: every e4m3 and bf16 number stays, whatever the random bits are") {
  for (int code = 0; code < 256; ++code) {
    e4m3 x{};
    x.bits = static_cast<std::uint8_t>(code);
    if ((code & 0x7f) == 0x7f) continue;
    for (const std::uint32_t r : {0u, 1u, 0x8000u, 0xffffu})
      CHECK(round_e4m3(x, {.stochastic = true}, r).bits == code);
  }
  for (const float x : {1.0f, -0.0f, 3.0e38f, 1e-40f})
    CHECK(stochastic_bf16(bf16(x), 0xffff).bits == bf16(x).bits);
  CHECK(std::isnan(stochastic_bf16(NAN, 0xffff)));
  CHECK(std::isinf(stochastic_bf16(std::numeric_limits<float>::infinity(), 0xffff)));
}

TEST_CASE("rounding: the expected value is the number") {
  for (const float x : {1.01f, -1.99f, 0x1.ffp-7f, 3e-3f, 0.001f, 300.0f}) {
    CAPTURE(x);
    const int exponent = std::max(std::ilogb(x), -6);
    CHECK(std::abs(bias(x, std::ldexp(1.0, exponent - 3), [=](std::uint32_t r) {
            return round_e4m3(x, {.stochastic = true}, r);
          })) < 2e-5);
    CHECK(std::abs(bias(x, std::ldexp(1.0, std::ilogb(x) - 7),
                        [=](std::uint32_t r) { return stochastic_bf16(x, r); })) < 2e-5);
  }
}

TEST_CASE("rounding: a number above 0 can be kept above 0") {
  for (const bool stochastic : {false, true}) {
    const E4m3Rounding keeps{stochastic, true}, drops{stochastic, false};
    CHECK(static_cast<float>(round_e4m3(1e-5f, keeps, 0)) == 0x1p-9f);
    CHECK(static_cast<float>(round_e4m3(1e-5f, drops, 0)) == 0);
    CHECK(static_cast<float>(round_e4m3(0.0f, keeps, 0xffff)) == 0);
  }
}

TEST_CASE("rounding: every instruction set gives the bits of the definition") {
  for (const SimdTable* table : simd_tables())
    for (const std::size_t n : {1u, 15u, 32u, 33u, 1024u, 1003u})
      for (const bool stochastic : {false, true})
        for (const bool keeps : {false, true})
          for (const int shift : {0, 16}) {
            CAPTURE(table->name);
            CAPTURE(n);
            CAPTURE(stochastic);
            const OptimizerKernels& k = table->optimizer;
            const std::vector<float> x = numbers(n);
            const std::vector<std::uint32_t> w = words(1024);
            const RandomHalves random{stochastic ? w.data() : nullptr, shift};
            const auto size = static_cast<std::int64_t>(n);
            std::vector<e4m3> codes(n + 1);
            codes[n].bits = 0x55;
            std::vector<std::uint8_t> exponents(static_cast<std::size_t>(scale_blocks(size)) + 1,
                                                9);
            k.narrow_blocks(x.data(), random, keeps, codes.data(), exponents.data(), size);
            CHECK(codes[n].bits == 0x55);
            CHECK(exponents.back() == 9);
            std::vector<float> back(n + 1, -1);
            k.widen_blocks(codes.data(), exponents.data(), back.data(), size);
            CHECK(back[n] == -1);
            std::vector<bf16> narrow(n + 1);
            narrow[n].bits = 0x55;
            if (stochastic) k.narrow_random(x.data(), random, narrow.data(), size);
            CHECK(narrow[n].bits == 0x55);
            for (std::size_t i = 0; i < n; ++i) {
              const std::uint32_t r = w[i] >> shift & 0xffff;
              const std::size_t b = i / kScaleBlock;
              float largest = 0;
              for (std::size_t j = b * kScaleBlock; j < std::min(n, (b + 1) * kScaleBlock); ++j)
                if (std::abs(x[j]) > largest) largest = std::abs(x[j]);
              if (exponents[b] != block_exponent(largest)) FAIL("exponent of block ", b);
              const e4m3 want =
                  round_e4m3(x[i] * inverse_block_scale(exponents[b]), {stochastic, keeps}, r);
              if (codes[i].bits != want.bits)
                FAIL("element ", i, " is ", int{codes[i].bits}, " and not ", int{want.bits});
              const float value = static_cast<float>(want) * block_scale(exponents[b]);
              if (std::bit_cast<std::uint32_t>(back[i]) != std::bit_cast<std::uint32_t>(value) &&
                  !(std::isnan(back[i]) && std::isnan(value)))
                FAIL("element ", i, " is read as ", back[i], " and not as ", value);
              if (stochastic && narrow[i].bits != stochastic_bf16(x[i], r).bits)
                FAIL("element ", i, " is bf16 ", narrow[i].bits);
            }
          }
}

TEST_CASE("rounding: every instruction set draws the words of random_bits in order") {
  for (const SimdTable* table : simd_tables())
    for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 32) - 5}) {
      std::vector<std::uint32_t> got(4 * 48 + 1, 17);
      table->random.words(kKey, first, 48, got.data());
      for (std::uint64_t i = 0; i < 4 * 48; ++i)
        if (got[i] != random_bits(kKey, 4 * first + i)) FAIL("word ", i, " is ", got[i]);
      CHECK(got.back() == 17);
    }
}

TEST_CASE("rounding: streams of steps and uses differ") {
  std::vector<std::uint64_t> all;
  for (std::uint64_t name = 0; name < 4; ++name)
    for (std::uint64_t step = 0; step < 50; ++step)
      for (const Drawn what : {Drawn::states, Drawn::weight})
        all.push_back(rounding_stream(name, step, what));
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

}  // namespace weft::rounding_test
