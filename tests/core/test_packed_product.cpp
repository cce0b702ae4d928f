// The packed matrix product: equal to the definition in any layout and size, and the same bits for
// every instruction set and every cut.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "weft/core/cpu/packed_product.h"
#include "weft/core/parallel.h"
#include "weft/tests/packed_support.h"
#include "weft/tests/sanitized.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::packed_product_test {
namespace {

using cpu::Product;

struct Shape3 {
  std::int64_t m, n, k;
};

// Operands with gaps between their rows, and what the product is added to.
template <class T>
struct Case {
  Shape3 shape;
  bool trans_a, trans_b, accumulate, with_bias;
  std::int64_t lda = (trans_a ? shape.m : shape.k) + 3, ldb = (trans_b ? shape.k : shape.n) + 1;
  std::int64_t ldc = shape.n + 2;
  std::vector<T> a = normal<T>((trans_a ? shape.k : shape.m) * lda, 1);
  std::vector<T> b = normal<T>((trans_b ? shape.n : shape.k) * ldb, 2);
  std::vector<T> before = normal<T>(shape.m * ldc, 3), bias = normal<T>(shape.n, 4);

  Product<T> into(std::vector<T>& c) const {
    return {a.data(), b.data(), c.data(), shape.m, shape.n, shape.k,
            lda,      ldb,      ldc,      trans_a, trans_b, accumulate};
  }
  const T* bias_or_null() const { return with_bias ? bias.data() : nullptr; }

  double expected(std::int64_t i, std::int64_t j) const {
    const auto at = [](const std::vector<T>& x, std::int64_t index) {
      return static_cast<double>(x[static_cast<std::size_t>(index)]);
    };
    double sum = accumulate ? at(before, i * ldc + j) : with_bias ? at(bias, j) : 0;
    for (std::int64_t p = 0; p < shape.k; ++p)
      sum +=
          at(a, trans_a ? p * lda + i : i * lda + p) * at(b, trans_b ? j * ldb + p : p * ldb + j);
    return sum;
  }
};

// Sanitizers take twenty times as long: they see each layout once, with a sum or with a bias.
template <class T>
void each_case(const Shape3& shape, auto&& check) {
  for (const bool trans_a : {false, true})
    for (const bool trans_b : {false, true})
      for (const bool accumulate : {false, true})
        for (const bool with_bias : {false, true})
          if (test::sanitized ? accumulate == (trans_a == trans_b) && with_bias != accumulate
                              : !accumulate || !with_bias) {
            CAPTURE(message("{} x {} x {}, transposed {} {}, accumulate {}, bias {}", shape.m,
                            shape.n, shape.k, trans_a, trans_b, accumulate, with_bias));
            check(Case<T>{shape, trans_a, trans_b, accumulate, with_bias});
          }
}

// Around the sizes of tiles and panels, and with several blocks of each axis.
constexpr Shape3 kShapes[] = {{1, 1, 1},
                              {1, 40, 70},
                              {5, 16, 3},
                              {6, 17, 31},
                              {7, 33, 0},
                              {12, 31, 32},
                              {13, 64, 35},
                              {29, 47, 64},
                              {97, 50, 40},
                              {40, 23, 401},
                              {200, 70, 90},
                              {9, 800, 385},
                              // Rows of a 4 KiB apart, then rows of b.
                              {13, 33, 1021},
                              {9, 45, 1023},
                              // Few rows of a where b's transpose is given.
                              {1, 3, 512},
                              {5, 16, 700},
                              {18, 101, 771},
                              {17, 60, 1025}};

template <class T>
void agrees_with_the_definition() {
  const double unit = std::is_same_v<T, float> ? 1e-6 : 1e-14;
  for (const Shape3& shape : kShapes)
    each_case<T>(shape, [&](const Case<T>& c) {
      std::vector<T> got = c.before;
      cpu::packed_product(c.into(got), c.bias_or_null(), [](auto...) {});
      const double allowed = unit * (4 + std::sqrt(static_cast<double>(shape.k)) * 4);
      for (std::int64_t i = 0; i < shape.m; ++i)
        for (std::int64_t j = 0; j < c.ldc; ++j) {
          const auto at = static_cast<std::size_t>(i * c.ldc + j);
          const double x = static_cast<double>(got[at]);
          if (j >= shape.n)
            REQUIRE(x == static_cast<double>(c.before[at]));  // the gap between rows
          else
            REQUIRE(std::abs(x - c.expected(i, j)) <= allowed);
        }
    });
}

template <class T>
std::vector<T> in_blocks(const Case<T>& c, const cpu::PackedBlocks& block) {
  std::vector<T> got = c.before;
  AlignedBytes buffer(cpu::packed_bytes<T>(block));
  cpu::packed_in_blocks(
      c.into(got), c.bias_or_null(), [](auto...) {}, block, buffer.data());
  return got;
}

std::int64_t whole_units(std::int64_t n, std::int64_t unit) {
  return cpu::ceil_div(n, unit) * unit;
}

template <class T>
void bits_depend_on_nothing_else(const Shape3& shape) {
  const test::RestoreKernels kernels_of_process;
  each_case<T>(shape, [&](const Case<T>& c) {
    std::vector<T> first;
    for (const SimdTable* table : test::simd_tables()) {
      CAPTURE(table->name);
      set_simd(table->name);
      std::vector<T> whole = c.before, parts = c.before;
      cpu::packed_product(c.into(whole), c.bias_or_null(), [](auto...) {});
      if (first.empty()) first = whole;
      CHECK(same(whole, first));
      for (std::int64_t i = 0; i < c.shape.m; i += 31)
        for (std::int64_t j = 0; j < c.shape.n; j += 19)
          cpu::packed_product(c.into(parts).tile(i, j, 31, 19),
                              c.with_bias ? c.bias.data() + j : nullptr, [](auto...) {});
      CHECK(same(parts, first));
      const PanelKernels<T>& kernels = simd().panels<T>();
      for (const bool strips : {false, true}) {
        if (c.trans_a && !strips) continue;
        CHECK(same(in_blocks(c, {kernels.rows, kernels.columns, 4, strips}), first));
        CHECK(same(in_blocks(c, {2 * kernels.rows, 2 * kernels.columns, 36, strips}), first));
      }
      if (!c.trans_a && !c.trans_b)
        for (const std::int64_t inner : {36, 200})
          CHECK(same(in_blocks(c, {.rows = whole_units(shape.m, kernels.rows),
                                   .columns = whole_units(shape.n, kernels.columns),
                                   .inner = inner,
                                   .strips = true,
                                   .one_panel = true}),
                     first));
      for (const int n : {1, 2, 3, 7}) {
        const test::RestoreThreads restore(n);
        std::vector<T> shared = c.before;
        cpu::parallel_product(c.into(shared), c.bias_or_null(), [](auto...) {});
        CHECK(same(shared, first));
      }
    }
  });
}

// Large enough for several threads, with parts of tiles and panels; rows 4 KiB apart.
constexpr Shape3 kManyRows{125, 200, 75}, kFewRows{23, 205, 790}, kFarRows{29, 45, 1021},
    kNarrowRows{13, 205, 790};

// after() for `run`, a product of the case.
void after_sees_each_element_once(const Case<float>& c, auto&& run) {
  const PanelKernels<float>& kernels = simd().panels<float>();
  const std::vector<float> want = in_blocks(c, {kernels.rows, kernels.columns, 36, c.trans_a});
  std::vector<float> got = c.before, seen(got.size());
  bool complete = true;
  run(got, [&](std::int64_t i, std::int64_t rows, std::int64_t j, std::int64_t columns) {
    for (std::int64_t r = i; r < i + rows; ++r)
      for (std::int64_t x = j; x < j + columns; ++x) {
        const auto at = static_cast<std::size_t>(r * c.ldc + x);
        ++seen[at];
        complete = complete && got[at] == want[at];
      }
  });
  CHECK(complete);
  for (std::int64_t i = 0; i < c.shape.m; ++i)
    for (std::int64_t j = 0; j < c.ldc; ++j)
      REQUIRE(seen[static_cast<std::size_t>(i * c.ldc + j)] == (j < c.shape.n ? 1.0f : 0.0f));
}

}  // namespace

TEST_CASE("packed product: f32 agrees with the definition") { agrees_with_the_definition<float>(); }
TEST_CASE("packed product: f64 agrees with the definition") {
  agrees_with_the_definition<double>();
}

TEST_CASE("packed product: f32 has the same bits on every instruction set, however it is cut") {
  bits_depend_on_nothing_else<float>(kManyRows);
  const Case<float> few{kFewRows, false, true, false, true};
  std::vector<float> c = few.before;
  REQUIRE(cpu::has_few_rows(few.into(c)));
  bits_depend_on_nothing_else<float>(kFewRows);
  bits_depend_on_nothing_else<float>(kNarrowRows);
  bits_depend_on_nothing_else<float>(kFarRows);
}
TEST_CASE("packed product: f64 has the same bits on every instruction set, however it is cut") {
  bits_depend_on_nothing_else<double>(kManyRows);
  bits_depend_on_nothing_else<double>(kFarRows);
}

TEST_CASE("packed product: few rows have the same bits when rows of the weight are packed") {
  const test::RestoreKernels restore;
  const Case<float> c{kFewRows, false, true, false, true};
  for (const SimdTable* table : test::simd_tables()) {
    CAPTURE(table->name);
    set_simd(table->name);
    std::vector<float> want = c.before, got = c.before;
    cpu::packed_product(c.into(want), c.bias_or_null(), [](auto...) {});
    const PanelKernels<float>& kernels = simd().panels<float>();
    cpu::PackedBlocks block = cpu::few_rows_blocks(c.shape.m, c.shape.k, kernels);
    block.strips = true;
    AlignedBytes buffer(cpu::few_rows_bytes(c.shape.m, c.shape.k, block, kernels));
    cpu::product_of_few_rows(
        kernels, c.into(got), c.bias_or_null(), [](auto...) {}, block, buffer.data());
    CHECK(same(got, want));
  }
}

TEST_CASE("packed product: rows 4 KiB apart have the same bits whatever L1's ways") {
  const test::RestoreKernels restore;
  for (const SimdTable* table : test::simd_tables()) {
    CAPTURE(table->name);
    set_simd(table->name);
    const PanelKernels<float>& kernels = simd().panels<float>();
    const std::int64_t m = 29, n = kernels.columns, k = 1024;
    const std::vector<float> a = normal<float>(m * k, 1), b = normal<float>(k * n, 2);
    std::vector<float> panel(b.size()), first;
    kernels.pack_panel(b.data(), n, k, n, panel.data());
    for (const std::int64_t ways : {64, 12, 8, 5, 1}) {
      CAPTURE(ways);
      std::vector<float> c(static_cast<std::size_t>(m * n));
      kernels.product({.a = a.data(),
                       .lda = k,
                       .panels = panel.data(),
                       .c = c.data(),
                       .ldc = n,
                       .m = m,
                       .n = n,
                       .k = k,
                       .l1_ways = ways});
      if (first.empty()) first = c;
      CHECK(same(c, first));
    }
  }
}

TEST_CASE("packed product: rows that fill half of a panel of AVX-512 take the panels of AVX2") {
  const test::RestoreKernels restore;
  for (const SimdTable* table : test::simd_tables()) {
    CAPTURE(table->name);
    set_simd(table->name);
    const PanelKernels<float>& own = simd().panels<float>();
    CHECK(cpu::few_rows_kernels(16).columns == std::min<std::int64_t>(own.columns, 16));
    CHECK(cpu::few_rows_kernels(17).columns == own.columns);
  }
}

TEST_CASE("packed product: after() sees each element of the result once, when it is complete") {
  const Case<float> many{{61, 150, 100}, true, false, false, true};
  const PanelKernels<float>& kernels = simd().panels<float>();
  const cpu::PackedBlocks block{2 * kernels.rows, kernels.columns, 36, true};
  AlignedBytes buffer(cpu::packed_bytes<float>(block));
  after_sees_each_element_once(many, [&](std::vector<float>& got, const auto& after) {
    cpu::packed_in_blocks(many.into(got), many.bias_or_null(), after, block, buffer.data());
  });
  const Case<float> few{{13, 205, 1025}, false, true, false, true};
  after_sees_each_element_once(few, [&](std::vector<float>& got, const auto& after) {
    CHECK(cpu::has_few_rows(few.into(got)));
    cpu::packed_product(few.into(got), few.bias_or_null(), after);
  });
}

TEST_CASE(
    "packed product: the transpose of a product of few rows is computed where that is less work") {
  std::vector<float> c(1);
  const auto few = [&](Shape3 s, bool trans_a, bool trans_b, bool accumulate) {
    return cpu::has_few_rows(Product<float>{c.data(), c.data(), c.data(), s.m, s.n, s.k, s.k, s.k,
                                            s.n, trans_a, trans_b, accumulate});
  };
  CHECK(few({256, 768, 512}, false, true, false));
  CHECK(!few({257, 9000, 512}, false, true, false));
  CHECK(!few({256, 767, 512}, false, true, false));
  CHECK(!few({256, 768, 511}, false, true, false));
  CHECK(!few({256, 768, 5000}, false, true, false));  // a is too large to be packed as a whole
  CHECK(!few({1, 768, 1 << 20}, false, true, false));
  CHECK(!few({256, 768, 512}, true, true, false));
  CHECK(!few({256, 768, 512}, false, false, false));
  CHECK(!few({256, 768, 512}, false, true, true));
}

TEST_CASE("packed product: threads share a product by rows, by columns or by both") {
  // A part has whole tiles and panels. Each row costs its part the same whatever the number of
  // terms: with few terms threads share the rows, with many the columns that each would pack.
  struct Cut {
    Shape3 shape;
    bool trans_a, trans_b;
    cpu::ProductTiles two, four;
    bool few_rows = false;  // also as a whole: panels are made of the rows
  };
  const auto check = [](std::int64_t rows, std::int64_t columns, const std::vector<Cut>& cuts) {
    for (const Cut& c : cuts)
      for (const int n : {1, 2, 4}) {
        CAPTURE(message("{} x {} x {}, transposed {} {}, tiles of {} x {}, {} threads", c.shape.m,
                        c.shape.n, c.shape.k, c.trans_a, c.trans_b, rows, columns, n));
        const cpu::ProductTiles got =
            cpu::packed_tiles({c.trans_a, c.trans_b, c.trans_b && !c.trans_a}, c.shape.m, c.shape.n,
                              c.shape.k, {rows, columns}, n);
        const cpu::ProductTiles unit =
            c.few_rows ? cpu::ProductTiles{columns, rows} : cpu::ProductTiles{rows, columns};
        const cpu::ProductTiles whole{cpu::ceil_div(c.shape.m, unit.rows) * unit.rows,
                                      cpu::ceil_div(c.shape.n, unit.columns) * unit.columns};
        const cpu::ProductTiles& want = n == 1 ? whole : n == 2 ? c.two : c.four;
        CHECK(got.rows == want.rows);
        CHECK(got.columns == want.columns);
      }
  };
  check(12, 32,
        {// x w^T with short sums: by rows.
         {{2048, 512, 128}, false, true, {1032, 512}, {516, 512}},
         {{2048, 128, 512}, false, true, {1032, 128}, {516, 128}},
         {{2048, 1024, 128}, false, true, {1032, 1024}, {516, 1024}},
         // With long sums: by columns.
         {{2048, 768, 3072}, false, true, {2052, 384}, {2052, 192}},
         {{514, 3072, 768}, false, true, {516, 1536}, {516, 768}},
         // Unless parts then have so few rows that these are packed instead of the columns.
         {{512, 3072, 768}, false, true, {256, 3072}, {256, 1536}},
         {{512, 2304, 768}, false, true, {256, 2304}, {256, 1152}},
         {{256, 768, 3072}, false, true, {128, 768}, {64, 768}, true},
         // Not if they leave much of a panel empty.
         {{144, 768, 3072}, false, true, {144, 384}, {144, 192}},
         // dy w.
         {{2048, 512, 128}, false, false, {1032, 512}, {516, 512}},
         {{2048, 3072, 768}, false, false, {2052, 1536}, {2052, 768}},
         // dy^T x, whose rows are packed: the longer axis is cut, or both.
         {{768, 3072, 2048}, true, false, {768, 1536}, {768, 768}},
         {{3072, 768, 2048}, true, false, {1536, 768}, {768, 768}},
         {{768, 768, 2048}, true, false, {384, 768}, {384, 384}},
         {{512, 128, 2048}, true, false, {264, 128}, {132, 128}},
         {{768, 768, 64}, true, false, {384, 768}, {192, 768}},
         // Fewer rows or columns than threads have tiles for.
         {{1, 512, 128}, false, true, {12, 256}, {12, 128}},
         {{2048, 30, 0}, false, true, {1032, 32}, {516, 32}}});
  check(6, 16,
        {{{2048, 512, 128}, false, true, {1026, 512}, {516, 512}},
         {{514, 3072, 768}, false, true, {516, 1536}, {516, 768}},
         {{512, 3072, 768}, false, true, {256, 3072}, {256, 1536}},
         {{3072, 768, 2048}, true, false, {1536, 768}, {768, 768}}});
}

TEST_CASE("packed product: an infinity of b reaches its own column only") {
  const Shape3 shape{7, 21, 40};
  Case<float> c{shape, false, true, false, false};
  c.b[static_cast<std::size_t>(20 * c.ldb + 3)] = std::numeric_limits<float>::infinity();
  std::vector<float> got = c.before;
  cpu::packed_product(c.into(got), c.bias_or_null(), [](auto...) {});
  for (std::int64_t i = 0; i < shape.m; ++i)
    for (std::int64_t j = 0; j < shape.n; ++j)
      CHECK(std::isfinite(got[static_cast<std::size_t>(i * c.ldc + j)]) == (j != 20));
}

}  // namespace weft::packed_product_test
