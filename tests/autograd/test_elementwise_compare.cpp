// Comparisons, and the ops that select by their result.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/tests/elementwise_support.h"
#include "weft/tests/support.h"

namespace weft::elementwise_test {
using test::error_of;
using test::mismatch;

namespace {

struct Comparison {
  Tensor (*op)(const Tensor&, const Tensor&);
  Tensor (*with_number)(const Tensor&, double);
  bool (*definition)(double, double);
};
const Comparison kComparisons[] = {
    {eq, eq, [](double a, double b) { return a == b; }},
    {ne, ne, [](double a, double b) { return a != b; }},
    {lt, lt, [](double a, double b) { return a < b; }},
    {le, le, [](double a, double b) { return a <= b; }},
    {gt, gt, [](double a, double b) { return a > b; }},
    {ge, ge, [](double a, double b) { return a >= b; }},
};

}  // namespace

TEST_CASE("elementwise: comparisons take every numeric dtype and bool") {
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64,
                        DType::u8, DType::boolean}) {
    const Tensor a = Tensor::of({0, 1, 2, 3, 1, 0}, {2, 3}, t);
    const Tensor b = Tensor::of({1, 1, 0, 3, 2, 0}, {2, 3}, t);
    CAPTURE(name(t));
    for (const Comparison& c : kComparisons) {
      const Tensor got = c.op(a, b);
      CHECK(got.dtype() == DType::boolean);
      CHECK(mismatch(got, map(a, b, c.definition), 0) == "");
      CHECK(mismatch(c.with_number(a, 1), map(a, [&](double x) { return c.definition(x, 1); }),
                     0) == "");
    }
  }
  const Tensor i = Tensor::of({2, 3}, {2}, DType::i64);
  CHECK(mismatch(lt(i, 2.5), Tensor::of({1, 0}, {2}), 0) == "");  // not truncated to 2
  const Tensor tenth = Tensor::full({1}, 0.1, DType::f32);
  CHECK(eq(tenth, 0.1).item() == 1);  // the number is rounded to the tensor's dtype
  const Tensor nan = Tensor::full({1}, kNan);
  CHECK(ne(nan, nan).item() == 1);
  CHECK(eq(nan, nan).item() == 0);
}

TEST_CASE("elementwise: integers compare exactly with any number") {
  const std::int64_t big = std::int64_t{1} << 53;
  const std::int64_t values[] = {INT64_MIN, -big - 1, -big, -1, 0, 1, 2, big, big + 1, INT64_MAX};
  const Tensor x = Tensor::from<std::int64_t>(values, {10});
  for (const double v : {-kInf, -1e300, -0x1p63, -0x1p53, -1.5, -1.0, -0.0, 0.5, 1.0, 0x1p53,
                         0x1p53 + 2, 0x1p63, 1e300, kInf, kNan})
    for (const Comparison& c : kComparisons) {
      CAPTURE(v);
      const Tensor got = c.with_number(x, v);
      for (std::size_t i = 0; i < 10; ++i) {
        // long double represents every i64 and every double.
        const auto a = static_cast<long double>(values[i]), b = static_cast<long double>(v);
        const bool want = std::isnan(v)
                              ? c.op == static_cast<Tensor (*)(const Tensor&, const Tensor&)>(ne)
                              : c.definition(a > b ? 1 : 0, a < b ? 1 : 0);
        CHECK(got.data<bool>()[i] == want);
      }
    }
  for (const DType t : {DType::u8, DType::i32, DType::boolean}) {
    CAPTURE(name(t));
    const Tensor y = Tensor::of({0, 1}, {2}, t);
    for (const double v : {-kInf, -0.5, 0.0, 0.5, 1.0, 1.5, 256.0, 0x1p31, kInf})
      for (const Comparison& c : kComparisons) {
        CAPTURE(v);
        CHECK(test::values(c.with_number(y, v)) ==
              std::vector<double>{double(c.definition(0, v)), double(c.definition(1, v))});
      }
  }
}

TEST_CASE("elementwise: comparison operators take numbers on either side") {
  const Tensor x = Tensor::of({1, 2, 3}, {3});
  const auto are = [](const Tensor& mask, const std::vector<double>& want) {
    return mask.dtype() == DType::boolean && test::values(mask) == want;
  };
  CHECK(are(x < 2, {1, 0, 0}));
  CHECK(are(x <= 2, {1, 1, 0}));
  CHECK(are(x > 2, {0, 0, 1}));
  CHECK(are(x >= 2, {0, 1, 1}));
  CHECK(are(x == 2, {0, 1, 0}));
  CHECK(are(x != 2, {1, 0, 1}));
  CHECK(are(2 < x, {0, 0, 1}));
  CHECK(are(2 <= x, {0, 1, 1}));
  CHECK(are(2 > x, {1, 0, 0}));
  CHECK(are(2 >= x, {1, 1, 0}));
  CHECK(are(2 == x, {0, 1, 0}));
  CHECK(are(2 != x, {1, 0, 1}));
}

TEST_CASE("elementwise: where copies any dtype unchanged") {
  const Tensor c = Tensor::of({1, 0, 1}, {3}, DType::boolean);
  for (int i = 0; i < kDTypes; ++i) {
    const auto t = static_cast<DType>(i);
    const Tensor a = Tensor::of({1, 1, 0}, {3}, t), b = Tensor::of({0, 0, 1}, {3}, t);
    CHECK(test::different_bits(where(c, a, b), Tensor::of({1, 0, 0}, {3}, t)) == "");
  }
}

TEST_CASE("elementwise: where and masked_fill with numbers") {
  const Tensor mask = Tensor::of({1, 0, 1}, {3}, DType::boolean);
  for (const DType t :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    const Tensor x = Tensor::of({1, 2, 3}, {3}, t);
    CHECK(test::different_bits(where(mask, x, 7), Tensor::of({1, 7, 3}, {3}, t)) == "");
    CHECK(test::different_bits(where(mask, 7, x), Tensor::of({7, 2, 7}, {3}, t)) == "");
    CHECK(test::different_bits(masked_fill(x, mask, 7), where(mask, 7, x)) == "");
  }
  const Tensor wide = Tensor::ones({2, 3});
  CHECK(masked_fill(wide, mask, -kInf).shape() == Shape{2, 3});
  CHECK(error_of([&] { masked_fill(mask, wide, 0); }) == "masked_fill: mask must be bool, got f32");
  CHECK(error_of([&] {
          masked_fill(wide, mask.view({3, 1}), 0);
        }) == "masked_fill: shapes must broadcast, got [2, 3] and [3, 1]");
  CHECK(error_of([&] {
          masked_fill(wide[0], mask.expand({2, 3}), 0);
        }) == "masked_fill: mask must broadcast to x's shape [3], got [2, 3]");
  CHECK(error_of([&] { masked_fill(wide, Tensor(), 0); }) ==
        "masked_fill: mask must be a tensor, got a null handle");
  CHECK(error_of([&] { where(mask, wide.to(DType::i64), 0.5); }) ==
        "where: the number must be whole for a tensor of i64, got 0.5");
}

}  // namespace weft::elementwise_test
