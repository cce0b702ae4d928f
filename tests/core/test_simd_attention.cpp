// The attention steps and the small product of every instruction set: correct, and equal bit by
// bit.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "weft/core/cpu/attention_block.h"
#include "weft/core/cpu/simd.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::simd_attention_test {
namespace {

using test::simd_tables;

using Floats = std::vector<float>;
constexpr int kLanes = 16;
constexpr float kFloatInf = std::numeric_limits<float>::infinity();

Floats normal(std::int64_t n, std::uint64_t seed) {
  const Tensor x = test::random({n}, seed).to(DType::f32);
  return Floats(x.data<float>(), x.data<float>() + n);
}

bool same_bits(const Floats& a, const Floats& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Lane i sees keys [i / 3, keys - i): some rows for all lanes, some for a few; lane 15 sees few
// keys.
LaneKeys staircase(std::int64_t keys) {
  LaneKeys k{0, 5, keys - 15, keys, {}, {}};
  for (int i = 0; i < kLanes; ++i) {
    k.first[i] = static_cast<float>(i / 3);
    k.stop[i] = static_cast<float>(keys - i);
  }
  return k;
}

bool sees(const LaneKeys& k, int lane, std::int64_t key) {
  return static_cast<float>(key) >= k.first[lane] && static_cast<float>(key) < k.stop[lane];
}

}  // namespace

TEST_CASE("simd product: any layout and size, added to c, to a bias or to nothing") {
  enum class Start { none, c, bias };
  for (const bool transposed : {false, true})
    for (const Start from : {Start::none, Start::c, Start::bias})
      for (const std::int64_t m : {1, 3, 4, 8, 15, 21})
        for (const std::int64_t n : {1, 15, 16, 32, 53})
          for (const std::int64_t k : {0, 1, 7, 40, 64, 65}) {
            CAPTURE(m);
            CAPTURE(n);
            CAPTURE(k);
            const std::int64_t ldb = n + 3, ldc = n + 5;
            const Floats a = normal(m * k + 1, 1), b = normal(k * ldb + 1, 2);
            const Floats before = normal(m * ldc, 3), bias = normal(n, 10);
            const double bound = k <= 40 ? 1e-5 : 2e-5;  // a longer chain rounds more often
            Floats first;
            for (const SimdTable* table : simd_tables()) {
              CAPTURE(table->name);
              Floats c = before;
              const float* start = from == Start::none ? nullptr
                                   : from == Start::c  ? c.data()
                                                       : bias.data();
              table->attention.product({a.data(), transposed ? m : k, transposed, b.data(), ldb,
                                        c.data(), ldc, m, n, k, start, from == Start::c ? ldc : 0});
              if (first.empty()) first = c;
              CHECK(same_bits(c, first));
              for (std::int64_t i = 0; i < m; ++i)
                for (std::int64_t j = 0; j < ldc; ++j) {
                  const auto at = static_cast<std::size_t>(i * ldc + j);
                  double want = j >= n || from == Start::c ? before[at]
                                : from == Start::bias      ? bias[static_cast<std::size_t>(j)]
                                                           : 0;
                  for (std::int64_t p = 0; p < k && j < n; ++p)
                    want += static_cast<double>(
                                a[static_cast<std::size_t>(transposed ? p * m + i : i * k + p)]) *
                            b[static_cast<std::size_t>(p * ldb + j)];
                  if (std::abs(c[at] - want) > bound)
                    FAIL("element ", i, ", ", j, " is ", c[at], ", wanted ", want);
                }
            }
          }
}

TEST_CASE("simd product: the queue of rows to fetch empties and changes no bit") {
  constexpr std::int64_t m = 24, n = 37, k = 72, kRows = 5, kNumbers = 40;
  const Floats a = normal(m * k, 1), b = normal(k * n, 2), rows = normal(kRows * kNumbers, 3);
  for (const SimdTable* table : simd_tables()) {
    CAPTURE(table->name);
    Floats plain = normal(m * n, 4), fetching = plain;
    table->attention.product(
        {a.data(), k, false, b.data(), n, plain.data(), n, m, n, k, plain.data(), n});
    RowsAhead ahead;
    ahead.first = ahead.end = RowsAhead::kMost - 1;  // the next entry is the ring's last
    for (int i = 0; i < 2; ++i)
      ahead.queue[ahead.end++ % RowsAhead::kMost] = {rows.data(), kNumbers, kRows, kNumbers};
    BlockProduct product{a.data(), k, false, b.data(),        n, fetching.data(), n,
                         m,        n, k,     fetching.data(), n, &ahead};
    table->attention.product(product);
    CHECK(same_bits(fetching, plain));
    for (int i = 0; i < 10; ++i) table->attention.product(product);
    if (std::string_view(table->name) != "avx512") {
      CHECK(ahead.end - ahead.first == 2);  // these fetch nothing
      continue;
    }
    CHECK(ahead.first == ahead.end);  // three lines of each row, one in a step
    CHECK(ahead.row == 0);
    const RowsAhead::Rows& taken = ahead.queue[RowsAhead::kMost - 1];
    CHECK(taken.at == rows.data() + 48);
    CHECK(taken.n == kNumbers - 48);
  }
}

TEST_CASE("simd product: a full queue of rows forgets the oldest, keep() all but the last") {
  const Floats rows = normal(80, 1);
  RowsAhead ahead;
  ahead.first = ahead.end = 0u - 2;  // the counters pass their limit
  cpu::Steps<float> steps;
  steps.use(&ahead);
  steps.fetch(rows.data(), 2, 0, 2);
  steps.fetch(rows.data(), 2, 1, 0);
  CHECK(ahead.end == ahead.first);
  ahead.row = 3;
  for (int i = 0; i < 40; ++i) steps.fetch(rows.data() + 2 * i, 2, 1, 2);
  CHECK(ahead.end - ahead.first == RowsAhead::kMost);
  CHECK(ahead.row == 0);
  CHECK(ahead.queue[ahead.first % RowsAhead::kMost].at == rows.data() + 16);
  ahead.row = 3;
  steps.keep(40);
  CHECK(ahead.row == 3);
  steps.keep(2);
  CHECK(ahead.end - ahead.first == 2);
  CHECK(ahead.row == 0);
  CHECK(ahead.queue[ahead.first % RowsAhead::kMost].at == rows.data() + 76);
}

TEST_CASE("simd attention: two steps of online softmax equal the softmax of all keys") {
  constexpr std::int64_t kKeys = 40, kLd = 20;
  const Floats scores = normal(2 * kKeys * kLd, 4);
  LaneKeys all{0, 0, kKeys, kKeys, {}, {}};
  std::fill_n(all.stop, kLanes, static_cast<float>(kKeys));
  const LaneKeys stairs = staircase(kKeys);
  Floats first;
  for (const SimdTable* table : simd_tables()) {
    CAPTURE(table->name);
    Floats x = scores;
    Floats high(kLanes, -kFloatInf), sum(kLanes, 0.0f), shrink(kLanes), shrink2(kLanes);
    float* second = x.data() + kKeys * kLd;
    table->attention.softmax_step(x.data(), kLd, all, high.data(), sum.data(), shrink.data());
    table->attention.softmax_step(second, kLd, stairs, high.data(), sum.data(), shrink2.data());
    for (int i = 0; i < kLanes; ++i) {
      const auto lane = static_cast<std::size_t>(i);
      CHECK(shrink[lane] == 0.0f);
      double top = -kFloatInf, total = 0;
      for (std::int64_t j = 0; j < 2 * kKeys; ++j)
        if (j < kKeys || sees(stairs, i, j - kKeys))
          top = std::fmax(top, scores[static_cast<std::size_t>(j * kLd + i)]);
      for (std::int64_t j = 0; j < 2 * kKeys; ++j) {
        const auto at = static_cast<std::size_t>(j * kLd + i);
        const bool seen = j < kKeys || sees(stairs, i, j - kKeys);
        const double want = seen ? std::exp(scores[at] - top) : 0;
        total += want;
        const double got = x[at] * (j < kKeys ? shrink2[lane] : 1.0f);
        if (!seen) CHECK(x[at] == 0.0f);
        CHECK(got == doctest::Approx(want).epsilon(1e-5));
      }
      CHECK(high[lane] == static_cast<float>(top));
      CHECK(sum[lane] == doctest::Approx(total).epsilon(1e-5));
    }
    x.insert(x.end(), sum.begin(), sum.end());
    if (first.empty()) first = x;
    CHECK(same_bits(x, first));
  }
}

TEST_CASE("simd attention: a query without visible keys has sum 0 and probabilities 0") {
  LaneKeys none{0, 3, 3, 3, {}, {}};
  none.stop[0] = 3;  // lane 0 sees all three
  for (const SimdTable* table : simd_tables()) {
    Floats x = normal(3 * kLanes, 5), high(kLanes, -kFloatInf), sum(kLanes, 0.0f), shrink(kLanes);
    table->attention.softmax_step(x.data(), kLanes, none, high.data(), sum.data(), shrink.data());
    CHECK(sum[0] >= 1.0f);
    CHECK(sum[1] == 0.0f);
    CHECK(high[1] == -kFloatInf);
    CHECK(x[kLanes + 1] == 0.0f);
  }
}

TEST_CASE("simd attention: probabilities and the gradient of the scores") {
  constexpr std::int64_t kKeys = 40;
  const Floats scores = normal(kKeys * kLanes, 6), grads = normal(kKeys * kLanes, 7);
  const Floats lse = normal(kLanes, 8), delta = normal(kLanes, 9);
  const LaneKeys stairs = staircase(kKeys);
  Floats first;
  for (const SimdTable* table : simd_tables()) {
    CAPTURE(table->name);
    Floats p = scores, dp = grads;
    table->attention.probabilities(p.data(), kLanes, stairs, lse.data());
    table->attention.scores_bwd(p.data(), dp.data(), kLanes, stairs, delta.data(), 0.5f);
    for (std::int64_t j = 0; j < kKeys; ++j)
      for (int i = 0; i < kLanes; ++i) {
        const auto at = static_cast<std::size_t>(j * kLanes + i),
                   lane = static_cast<std::size_t>(i);
        const double want = sees(stairs, i, j) ? std::exp(scores[at] - lse[lane]) : 0;
        CHECK(p[at] == doctest::Approx(want).epsilon(1e-5));
        CHECK(dp[at] == doctest::Approx(want * (grads[at] - delta[lane]) * 0.5).epsilon(1e-4));
      }
    p.insert(p.end(), dp.begin(), dp.end());
    if (first.empty()) first = p;
    CHECK(same_bits(p, first));
  }
}

}  // namespace weft::simd_attention_test
