// Quotients rounded down and their remainders, as in Python.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "weft/autograd/reduce.h"
#include "weft/autograd/values.h"
#include "weft/tests/elementwise_support.h"
#include "weft/tests/support.h"

namespace weft::elementwise_division_test {
namespace {

using elementwise_test::kInf;
using elementwise_test::kNan;
using test::different_bits;
using test::error_of;
using Values = std::vector<double>;

}  // namespace

TEST_CASE("elementwise: floor_divide and remainder of integers, every pair against division") {
  for (const DType t : {DType::i32, DType::i64, DType::u8}) {
    CAPTURE(name(t));
    const double low = t == DType::u8 ? 0 : -9;
    const Tensor a = Tensor::arange(low, 10, 1, t).unsqueeze(1), b = Tensor::arange(low, 10, 1, t);
    const Tensor q = floor_divide(a, b), r = remainder(a, b);
    for (std::int64_t i = 0; i < a.dim(0); ++i)
      for (std::int64_t j = 0; j < b.dim(0); ++j) {
        const double x = a[i][0].item(), y = b[j].item();
        const double want = y == 0 ? 0 : std::floor(x / y);
        CHECK(q[i][j].item() == want);
        CHECK(r[i][j].item() == (y == 0 ? 0 : x - want * y));
        if (y == 0) continue;
        CHECK(floor_divide(a, y)[i][0].item() == want);
        CHECK(remainder(a, y)[i][0].item() == x - want * y);
      }
  }
  // The smallest number / -1 wraps around, and larger divisors than 127 are no negative ones.
  for (const DType t : {DType::i32, DType::i64}) {
    const Tensor least = Tensor::full({3}, t == DType::i32 ? -0x1p31 : -0x1p63, t);
    CHECK(equal(floor_divide(least, -1), least));
    CHECK(equal(floor_divide(least, Tensor::full({}, -1, t)), least));
    CHECK(equal(remainder(least, -1), zeros_like(least)));
    CHECK(remainder(least, Tensor::full({}, -1, t)).max().item() == 0);
  }
  const Tensor bytes = Tensor::of({254, 255, 7}, DType::u8);
  CHECK(test::values(remainder(bytes, 255)) == Values{254, 0, 7});
  CHECK(test::values(floor_divide(bytes, Tensor::of({200, 255, 8}, DType::u8))) == Values{1, 1, 0});
}

TEST_CASE("elementwise: floor_divide and remainder of floating numbers") {
  // Each line is what Python 3 prints for a // b and a % b.
  const double cases[][4] = {{7, 2, 3, 1},
                             {-7, 2, -4, 1},
                             {7, -2, -4, -1},
                             {-7, -2, 3, -1},
                             {5.5, 1.5, 3, 1},
                             {-5.5, 1.5, -4, 0.5},
                             {1, 0.1, 9, 0.09999999999999995},
                             {-0.5, 1, -1, 0.5},
                             {6, 3, 2, 0},
                             {-6, 3, -2, 0},
                             {0, -3, 0, 0},
                             {3, kInf, 0, 3},
                             {-3, kInf, -1, kInf},
                             {1e300, 3, 3.3333333333333335e299, 0}};
  for (const auto& [a, b, quotient, rest] : cases) {
    CAPTURE(a);
    CAPTURE(b);
    const Tensor x = Tensor::full({2}, a, DType::f64), y = Tensor::full({2}, b, DType::f64);
    CHECK(floor_divide(x, y)[1].item() == doctest::Approx(quotient).epsilon(1e-15));
    CHECK(floor_divide(x, b)[0].item() == doctest::Approx(quotient).epsilon(1e-15));
    CHECK(remainder(x, y)[1].item() == rest);
    CHECK(remainder(x, b)[0].item() == rest);
  }
  const Tensor x = Tensor::of({1, -1, 0, kNan, kInf}, DType::f64), zero = zeros_like(x);
  const Values q = test::values(floor_divide(x, zero)), r = test::values(remainder(x, zero));
  CHECK(q[0] == kInf);
  CHECK(q[1] == -kInf);
  for (const double v : {q[2], q[3], r[0], r[2], r[3], r[4]}) CHECK(std::isnan(v));
  CHECK(std::isnan(floor_divide(x, 2)[4].item()));
  CHECK(std::isnan(remainder(x, 2)[4].item()));
}

TEST_CASE("elementwise: floor_divide and remainder in every dtype, layout and broadcast") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name(t));
    const Tensor a = test::random({3, 40}, 1, t) * 8;
    const Tensor positive = test::random_in({3, 40}, 0.5, 3, 2, t);
    for (const Tensor& b : {positive, -positive}) {
      const Tensor q = floor_divide(a, b), r = remainder(a, b);
      CHECK(q.dtype() == t);
      const auto down = [](double x, double y) { return std::floor(x / y); };
      const auto rest = [&](double x, double y) { return x - y * down(x, y); };
      CHECK(equal(q, elementwise_test::map(a, b, down).to(t)));
      CHECK(test::mismatch(r, elementwise_test::map(a, b, rest), test::tolerance(t), 1) == "");
      CHECK(different_bits(floor_divide(test::strided(a), test::strided(b)), q) == "");
      CHECK(different_bits(remainder(test::strided(a), test::strided(b)), r) == "");
      const Tensor row = b[1], rows = row.expand({3, 40}).contiguous();
      CHECK(different_bits(remainder(a, row), remainder(a, rows)) == "");
      CHECK(different_bits(floor_divide(row, a), floor_divide(rows, a)) == "");
    }
    CHECK(different_bits(floor_divide(a, 1.5), floor_divide(a, Tensor::full({}, 1.5, t))) == "");
  }
  CHECK(remainder(Tensor::empty({0, 3}), Tensor::ones({3})).shape() == Shape{0, 3});
  CHECK(floor_divide(Tensor::empty({2, 3}, DType::i32, kMeta), 2).is_meta());
}

TEST_CASE("elementwise: the gradient of remainder, and none of floor_divide") {
  const GradcheckOptions twice{.second_order = true};
  const auto rest = [](const TensorList& in) { return remainder(square(in[0]), in[1]); };
  const Tensor a = test::random_in({2, 3}, 1, 2, 1), b = test::random_in({3}, 0.4, 0.6, 2);
  CHECK(gradcheck(rest, {a, b}, twice) == "");
  CHECK(gradcheck(rest, {test::strided(a), test::strided(b) * -1}) == "");
  CHECK(gradcheck(rest, {Tensor::empty({0, 3}, DType::f64), b}) == "");
  CHECK(gradcheck([](const TensorList& in) { return remainder(square(in[0]), 0.37); }, {a},
                  twice) == "");
  const Tensor x = Tensor::of({7, -7}, DType::f64).set_requires_grad();
  const Tensor y = Tensor::of({2, 2}, DType::f64).set_requires_grad();
  Tape tape;
  CHECK_FALSE(recording(floor_divide(x, y)));
  CHECK_FALSE(recording(floor_divide(x, 2)));
  const TensorList g = tape.gradients(sum(remainder(x, y)), {x, y});
  CHECK(test::values(g[0]) == Values{1, 1});
  CHECK(test::values(g[1]) == Values{-3, 4});
}

TEST_CASE("elementwise: errors of floor_divide and remainder name the rule") {
  const Tensor i = Tensor::of({1, 2}, DType::i32), f = Tensor::ones({2});
  CHECK(error_of([&] { floor_divide(i, 0); }) ==
        "floor_divide: b must not be 0 for a tensor of i32, got 0");
  CHECK(error_of([&] { remainder(i, 0); }) ==
        "remainder: b must not be 0 for a tensor of i32, got 0");
  CHECK(error_of([&] { remainder(i, 0.5); }) ==
        "remainder: the number must be whole for a tensor of i32, got 0.5");
  CHECK(error_of([&] { floor_divide(i.to(DType::u8), -3); }) ==
        "floor_divide: the number must be in [0, 255] for a tensor of u8, got -3");
  CHECK(error_of([&] { floor_divide(i, f); }) ==
        "floor_divide: both operands must have one dtype, got i32 and f32");
  CHECK(error_of([&] { remainder(f > 0, f > 0); }) ==
        "remainder: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool");
  CHECK(error_of([&] { remainder(Tensor(), 2); }) ==
        "remainder: a must be a tensor, got a null handle");
}

TEST_CASE("elementwise: one bound of clamp") {
  const Tensor x = Tensor::of({-kInf, -2, 0.5, 3, kInf, kNan}, {6});
  CHECK(different_bits(clamp_min(x, 0.5), clamp(x, 0.5, kInf), test::Nan::allowed) == "");
  CHECK(different_bits(clamp_max(x, 0.5), clamp(x, -kInf, 0.5), test::Nan::allowed) == "");
  const Tensor bytes = Tensor::of({0, 100, 255}, DType::u8);
  CHECK(test::values(clamp_min(bytes, 50)) == Values{50, 100, 255});
  CHECK(test::values(clamp_max(bytes, 50)) == Values{0, 50, 50});
  CHECK(equal(clamp_min(bytes, -1e9), bytes));
  CHECK(error_of([&] { clamp_max(bytes, -1); }) ==
        "clamp_max: a tensor of u8 must have a number from -inf to -1, its range is [0, 255]");
  CHECK(error_of([&] { clamp_min(x, kNan); }) == "clamp_min: low must be a number, got nan");
  CHECK(error_of([&] { clamp_max(x, kNan); }) == "clamp_max: high must be a number, got nan");
  CHECK(error_of([&] { clamp_min(x > 0, 1); }) ==
        "clamp_min: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool");
  const Tensor edge = Tensor::of({1, 2, 3}, DType::f64).set_requires_grad();
  Tape tape;
  CHECK(test::values(tape.gradients(sum(clamp_min(edge, 2)), {edge})[0]) == Values{0, 1, 1});
  Tape second;
  CHECK(test::values(second.gradients(sum(clamp_max(edge, 2)), {edge})[0]) == Values{1, 1, 0});
}

}  // namespace weft::elementwise_division_test
