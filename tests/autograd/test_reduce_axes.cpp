// Reductions over axes that are values, norms of any power over them, and calls that would take a
// number for something else.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/values.h"
#include "weft/autograd/view.h"
#include "weft/tests/support.h"

namespace weft::reduce_axes_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class... Args>
constexpr bool kVarTakes = requires(const Tensor& x, Args... args) {
  var(x, args...);
};
template <class... Args>
constexpr bool kStddevTakes = requires(const Tensor& x, Args... args) {
  stddev(x, args...);
};
template <class... Args>
constexpr bool kNormTakes = requires(const Tensor& x, Args... args) {
  norm(x, args...);
};
template <class... Args>
constexpr bool kSumTakes = requires(const Tensor& x, Args... args) {
  sum(x, args...);
};

// The p-norm along the last axis of a matrix, by a plain loop.
Tensor norm_of_rows(const Tensor& x, double p) {
  const Tensor y = Tensor::zeros({x.dim(0)}, DType::f64);
  for (std::int64_t r = 0; r < x.dim(0); ++r) {
    double sum = 0;
    for (std::int64_t c = 0; c < x.dim(1); ++c) {
      const double size = std::abs(x[r][c].item());
      sum = std::isinf(p) ? std::max(sum, size) : sum + std::pow(size, p);
    }
    y.data<double>()[r] = std::isinf(p) ? sum : std::pow(sum, 1 / p);
  }
  return y;
}

}  // namespace

TEST_CASE("reduce axes: a vector of axes is as a list in braces") {
  const Tensor x = test::random({2, 3, 4});
  const std::vector<int> axes{2, 0}, none;
  CHECK(different_bits(sum(x, axes), sum(x, {2, 0})) == "");
  CHECK(different_bits(x.sum(axes, true), x.sum({2, 0}, true)) == "");
  CHECK(different_bits(mean(x, axes), mean(x, {2, 0})) == "");
  CHECK(different_bits(x.mean(axes), x.mean({2, 0})) == "");
  CHECK(different_bits(var(x, axes, 0), var(x, {2, 0}, 0)) == "");
  CHECK(different_bits(stddev(x, axes, 1, true), stddev(x, {2, 0}, 1, true)) == "");
  CHECK(different_bits(norm(x, axes), norm(x, {2, 0})) == "");
  CHECK(different_bits(sum(x, none), sum(x)) == "");
  CHECK(different_bits(var(x, 1), var(x, {1})) == "");
  CHECK(different_bits(permute(x, std::vector{2, 0, 1}), x.permute({2, 0, 1})) == "");
  CHECK(different_bits(x.permute(std::vector{2, 0, 1}), x.permute({2, 0, 1})) == "");
  CHECK(different_bits(flip(x, axes), flip(x, {2, 0})) == "");
  CHECK(error_of([&] { sum(x, std::vector{0, 5}); }) == "sum: dim must be in [-3, 3), got 5");
}

TEST_CASE("reduce axes: calls that would misread a number do not compile") {
  static_assert(kVarTakes<Dims, int, bool> && kStddevTakes<Dims, int, bool>);
  static_assert(!kVarTakes<Dims, bool> && !kStddevTakes<Dims, bool>);  // not correction = 1
  static_assert(!kVarTakes<Dims, bool, bool> && !kStddevTakes<Dims, bool, bool>);
  static_assert(kNormTakes<Dims, bool, double> && kNormTakes<Dims, bool> && kNormTakes<int>);
  static_assert(!kNormTakes<Dims, double> && !kNormTakes<Dims, int>);  // not keepdim = true
  static_assert(!kNormTakes<Dims, double, double>);
  static_assert(!kNormTakes<int, bool> && !kNormTakes<double, bool>);  // p or an axis?
  static_assert(!kNormTakes<bool>);
  static_assert(kSumTakes<int, bool> && !kSumTakes<bool> && !kSumTakes<double>);  // not axis 1
}

TEST_CASE("reduce axes: the number of a norm is its power, braces hold axes") {
  const Tensor x = Tensor::of({{3, -4}, {0, 12}}, DType::f64);
  CHECK(norm(x, 1).item() == 19);
  CHECK(norm(x, 2).item() == 13);
  CHECK(equal(norm(x, {1}), Tensor::of({5, 12}, DType::f64)));
  CHECK(equal(norm(x, {-1}), Tensor::of({5, 12}, DType::f64)));
  CHECK(equal(norm(x, Dims(1)), Tensor::of({5, 12}, DType::f64)));
  CHECK(norm(x, {}).item() == 13);
}

TEST_CASE("reduce axes: norms of any power against plain loops") {
  for (const double p : {0.5, 1.0, 2.0, 3.0, 3.5, kInf}) {
    CAPTURE(p);
    for (const Shape& s : {Shape{5, 7}, Shape{1, 1}, Shape{4, 130}, Shape{0, 3}}) {
      const Tensor x = test::random(s), want = norm_of_rows(x, p);
      CHECK(mismatch(norm(x, {-1}, false, p), want, 1e-13) == "");
      CHECK(mismatch(norm(test::strided(x), {1}, false, p), want, 1e-13) == "");
      CHECK(mismatch(norm(x.t().contiguous(), {0}, true, p), want.unsqueeze(0), 1e-13) == "");
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        CHECK(mismatch(norm(x.to(t), {1}, false, p), norm_of_rows(x.to(t), p),
                       2 * test::tolerance(t)) == "");
      CHECK(norm(x.to(kMeta), {1}, true, p).shape() == Shape{s[0], 1});
    }
    // Two axes of three, neighbours or not.
    const Tensor x = test::random({3, 4, 5}, 2);
    CHECK(mismatch(norm(x, {0, 2}, false, p),
                   norm_of_rows(x.permute({1, 0, 2}).reshape({4, 15}), p), 1e-13) == "");
    CHECK(mismatch(norm(x, {2, 1}, true, p), norm_of_rows(x.reshape({3, 20}), p).reshape({3, 1, 1}),
                   1e-13) == "");
    CHECK(different_bits(norm(x, {}, false, p), norm(x, p)) == "");
    CHECK(norm(x, {}, true, p).shape() == Shape{1, 1, 1});
    CHECK(norm(Tensor::full({}, -3), {}, false, p).item() == doctest::Approx(3));
  }
}

TEST_CASE("reduce axes: gradients of norms of any power, twice") {
  GradcheckOptions twice;
  twice.second_order = true;
  twice.step = 1e-5;
  twice.tolerance = 1e-5;
  for (const double p : {0.5, 1.0, 1.5, 2.0, 3.0, kInf})
    for (const Dims& dims : {Dims{1}, Dims{0, 2}, Dims{-1, 1}, Dims{}})
      for (const bool keepdim : {false, true}) {
        CAPTURE(p);
        const auto f = [&](const TensorList& in) { return square(norm(in[0], dims, keepdim, p)); };
        const Tensor x = test::random({2, 3, 4}, 3);
        CHECK(gradcheck(f, {x}, twice) == "");
        CHECK(gradcheck(f, {test::strided(x)}) == "");
        CHECK(gradcheck([&](const TensorList& in) { return f({in[0] * in[0]}) * f(in); }, {x}) ==
              "");
      }
  // Rows without a number have a gradient of 0, and others are not disturbed.
  for (const double p : {0.5, 1.0, 2.0, 3.0, kInf}) {
    const Tensor x = Tensor::of({{0, 0}, {0, 4}}, DType::f64).set_requires_grad();
    Tape tape;
    CHECK(mismatch(tape.gradients(sum(norm(x, {1}, false, p)), {x})[0],
                   Tensor::of({{0, 0}, {0, 1}}, DType::f64), 1e-14) == "");
  }
}

TEST_CASE("reduce axes: norms over no elements, and errors") {
  const Tensor none = Tensor::empty({2, 0}, DType::f64);
  for (const double p : {0.5, 1.0, 2.0, 3.0}) {
    CHECK(equal(norm(none, {1}, false, p), Tensor::zeros({2}, DType::f64)));
    CHECK(gradcheck([&](const TensorList& in) { return norm(in[0], {0}, false, p); }, {none}) ==
          "");
  }
  CHECK(error_of([&] { norm(none, {1}, false, kInf); }) ==
        "norm: x must have an element for p = infinity, got shape [2, 0]");
  CHECK(norm(none, {0}, false, kInf).shape() == Shape{0});
  CHECK(error_of([&] { norm(none, {0}, false, -1); }) ==
        "norm: p must be positive (or infinity), got -1");
  CHECK(error_of([&] { norm(none, {2}, false, 3); }) == "norm: dim must be in [-2, 2), got 2");
  CHECK(error_of([&] {
          norm(none, {0, -2}, false, 1);
        }) == "norm: every dim may be given once, got -2 again");
}

}  // namespace weft::reduce_axes_test
