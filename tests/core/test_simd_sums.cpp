// Sums and rotary embedding of every instruction set equal their definitions bit by bit.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "weft/core/cpu/simd.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::simd_sums_test {
namespace {

using test::simd_tables;

}  // namespace

TEST_CASE_TEMPLATE("simd sums: sums of squares use sixteen f64 accumulators", T, float, bf16) {
  const Tensor x = test::random({203}, 1).to(dtype_of<T>());
  for (const SimdTable* table : simd_tables())
    for (const std::int64_t begin : {0, 1, 3})
      for (const std::int64_t n : {0, 1, 15, 16, 17, 64, 199}) {
        CAPTURE(table->name);
        CAPTURE(begin);
        CAPTURE(n);
        const T* p = x.data<T>() + begin;
        double lanes[16] = {}, want = 0;
        for (std::int64_t i = 0; i < n; ++i) {
          const double v = static_cast<double>(static_cast<float>(p[i]));
          lanes[i % 16] += v * v;
        }
        for (const double lane : lanes) want += lane;
        CHECK(table->of<T>().sum_squares(p, n) == want);
      }
}

TEST_CASE_TEMPLATE("simd sums: columns are summed row by row in f32", T, float, bf16) {
  constexpr std::int64_t kStride = 71;
  const Tensor x = test::random({9, kStride}, 2).to(dtype_of<T>());
  for (const SimdTable* table : simd_tables())
    for (const std::int64_t rows : {1, 3, 4, 5, 8, 9})
      for (const std::int64_t width : {1, 15, 16, 40, 64, 70}) {
        CAPTURE(table->name);
        CAPTURE(rows);
        CAPTURE(width);
        std::vector<float> got(71, 7.0f);
        const T* p = x.data<T>() + 1;
        table->of<T>().column_sums(p, rows, kStride, width, got.data());
        for (std::int64_t c = 0; c < 71; ++c) {
          float want = c < width ? 0.0f : 7.0f;
          for (std::int64_t r = 0; r < rows && c < width; ++r)
            want += static_cast<float>(p[r * kStride + c]);
          CHECK(got[static_cast<std::size_t>(c)] == want);
        }
      }
}

TEST_CASE_TEMPLATE("simd sums: dot products of rows use sixteen sums each", T, float, bf16, f16) {
  constexpr std::int64_t kRow = 75, kSums = 12;
  const auto index = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const Tensor x = test::random({9, kRow}, 4).to(dtype_of<T>());
  const Tensor y = test::random({11, kRow}, 5).to(dtype_of<T>());
  const auto dot = [](const T* a, const T* b, std::int64_t n) {
    float lanes[16] = {};
    for (std::int64_t i = 0; i < n; ++i)
      lanes[i % 16] = std::fma(static_cast<float>(a[i]), static_cast<float>(b[i]), lanes[i % 16]);
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
  };
  for (const SimdTable* table : simd_tables())
    for (const std::int64_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
      for (const std::int64_t columns : {0, 1, 2, 3, 4, 5, 11})
        for (const std::int64_t n : {0, 1, 15, 16, 33, 70}) {
          CAPTURE(message("{}: {} x {} products of {}", table->name, rows, columns, n));
          std::vector<float> got(index(10 * kSums), 7.0f);
          const T *px = x.data<T>() + 1, *py = y.data<T>() + 3;
          table->of<T>().dots({.x = px,
                               .ldx = kRow,
                               .rows = rows,
                               .y = py,
                               .ldy = kRow,
                               .columns = columns,
                               .n = n,
                               .sums = got.data(),
                               .ld_sums = kSums});
          for (std::int64_t i = 0; i < 10; ++i)
            for (std::int64_t j = 0; j < kSums; ++j) {
              const bool inside = i < rows && j < columns;
              const float want = inside ? dot(px + i * kRow, py + j * kRow, n) : 7.0f;
              CHECK(got[index(i * kSums + j)] == want);
              if (inside) CHECK(table->of<T>().dot(px + i * kRow, py + j * kRow, n) == want);
            }
        }
}

TEST_CASE_TEMPLATE("simd rope: halves of any length are rotated by sine and cosine", T, float,
                   bf16) {
  constexpr std::int64_t kHeads = 3;
  const Tensor x = test::random({kHeads * 80 + 1}, 3).to(dtype_of<T>());
  const Tensor cos = test::random({41}, 4, DType::f32), sin = test::random({41}, 5, DType::f32);
  for (const SimdTable* table : simd_tables())
    for (const std::int64_t half : {1, 8, 15, 16, 32, 40})
      for (const float sign : {1.0f, -1.0f}) {
        CAPTURE(table->name);
        CAPTURE(half);
        CAPTURE(sign);
        const T* p = x.data<T>() + 1;
        const float *c = cos.data<float>() + 1, *s = sin.data<float>() + 1;
        std::vector<T> y(kHeads * 80 + 1, T(7.0f));
        table->of<T>().rope(p, c, s, kHeads, half, sign, y.data());
        for (std::int64_t h = 0; h < kHeads; ++h)
          for (std::int64_t i = 0; i < half; ++i) {
            const auto at = static_cast<std::size_t>(h * 2 * half + i);
            const auto other = at + static_cast<std::size_t>(half);
            const float a = p[at], b = p[other], turn = sign * s[i];
            const float ac = a * c[i], bs = b * turn, bc = b * c[i], as = a * turn;
            CHECK(static_cast<float>(y[at]) == static_cast<float>(T(ac - bs)));
            CHECK(static_cast<float>(y[other]) == static_cast<float>(T(bc + as)));
          }
        CHECK(static_cast<float>(y[static_cast<std::size_t>(kHeads * 2 * half)]) == 7.0f);
      }
}

}  // namespace weft::simd_sums_test
