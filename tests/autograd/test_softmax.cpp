#include <doctest/doctest.h>

#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/softmax.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::softmax_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

const Shape kShapes[] = {{1, 1}, {3, 5}, {2, 3, 7}, {4, 1025}, {0, 4}, {4, 0}};
using Op = Tensor (*)(const Tensor&, int);
const Op kOps[] = {softmax, log_softmax};

// By definition, with primitive ops.
Tensor by_definition(Op op, const Tensor& x, int dim) {
  const Tensor e = exp(x), total = sum(e, {dim}, true);
  return op == softmax ? div(e, total) : sub(x, log(total));
}

}  // namespace

TEST_CASE("softmax: agrees with its definition along every axis") {
  for (const Op op : kOps)
    for (const Shape& s : kShapes)
      for (int dim = -s.size(); dim < s.size(); ++dim) {
        CAPTURE(to_string(s));
        CAPTURE(dim);
        const Tensor x = random(s);
        const double terms = op == softmax ? 0 : 1;  // x - log(sum) cancels where both are equal
        CHECK(mismatch(op(x, dim), by_definition(op, x, dim), 1e-12, terms) == "");
      }
}

TEST_CASE("softmax: f32 and bf16 agree with f64 in forward and backward") {
  for (const Op op : kOps)
    for (const Shape& s : kShapes)
      for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
        CAPTURE(to_string(s));
        CAPTURE(std::string(name(t)));
        const auto grad_of = [&](const Tensor& values, const Tensor& dy, Tensor& y) {
          Tensor x = values.detach();
          x.set_requires_grad();
          Tape tape;
          y = op(x, -1);
          return tape.gradients(y, {x}, dy)[0];
        };
        const Tensor x = random(s, 1, t), dy = random(s, 2, t);
        Tensor y, y64;
        const Tensor dx = grad_of(x, dy, y);
        const Tensor dx64 = grad_of(x.to(DType::f64), dy.to(DType::f64), y64);
        CHECK(y.dtype() == t);
        CHECK(dx.dtype() == t);
        CHECK(mismatch(y, y64, test::tolerance(t)) == "");
        // bf16: the backward reads the rounded y, and the sum over the row multiplies its error.
        CHECK(mismatch(dx, dx64, 2 * test::tolerance(t)) == "");
      }
}

TEST_CASE("softmax: first and second gradients of strided and repeated inputs") {
  for (const Op op : kOps) {
    for (const Shape& s : {Shape{1, 1}, Shape{3, 5}, Shape{2, 3, 4}, Shape{0, 4}, Shape{4, 0}})
      for (const int dim : {0, -1}) {
        CAPTURE(to_string(s));
        const auto f = [=](const TensorList& in) { return op(in[0], dim); };
        CHECK(gradcheck(f, {random(s)}, {.second_order = true}) == "");
        CHECK(gradcheck(f, {test::strided(random(s))}) == "");
      }
    const auto twice = [=](const TensorList& in) { return mul(op(in[0], -1), op(in[0], 0)); };
    CHECK(gradcheck(twice, {random({3, 4})}) == "");
  }
}

TEST_CASE("softmax: large values do not overflow, masked entries are 0, a masked row is NaN") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const Tensor x = Tensor::of({1000, 1000, -kInf, -kInf, -kInf, -kInf}, {2, 3}, t);
    const Tensor p = softmax(x), log_p = log_softmax(x);
    CHECK(p.select(0, 0).select(0, 0).item() == 0.5);
    CHECK(p.select(0, 0).select(0, 2).item() == 0);
    CHECK(log_p.select(0, 0).select(0, 1).item() == doctest::Approx(-0.6931).epsilon(0.01));
    CHECK(log_p.select(0, 0).select(0, 2).item() == -kInf);
    for (int i = 0; i < 3; ++i) {
      CHECK(std::isnan(p.select(0, 1).select(0, i).item()));
      CHECK(std::isnan(log_p.select(0, 1).select(0, i).item()));
    }
  }
}

TEST_CASE("softmax: a NaN affects only its own row") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType t : {DType::f64, DType::f32}) {
    const Tensor p = softmax(Tensor::of({1, nan, 3, 1, 2, 3}, {2, 3}, t));
    for (int i = 0; i < 3; ++i) CHECK(std::isnan(p.select(0, 0).select(0, i).item()));
    CHECK(p.select(0, 1).sum().item() == doctest::Approx(1));
  }
}

TEST_CASE("softmax: the number of threads changes no bit and meta gives the same shape") {
  const test::RestoreThreads restore;
  const Tensor x = random({61, 1033}, 3, DType::f32);
  set_num_threads(1);
  const Tensor one = softmax(x), log_one = log_softmax(x);
  set_num_threads(3);
  CHECK(different_bits(softmax(x), one) == "");
  CHECK(different_bits(log_softmax(x), log_one) == "");
  const Tensor meta = softmax(Tensor::empty({2, 3}, DType::bf16, kMeta), 0);
  CHECK(meta.shape() == Shape{2, 3});
  CHECK(meta.dtype() == DType::bf16);
}

TEST_CASE("softmax: errors name the rule") {
  const Tensor x = random({2, 3});
  CHECK(error_of([&] { softmax(x, 2); }) == "softmax: dim must be in [-2, 2), got 2");
  CHECK(error_of([&] { log_softmax(x, -3); }) == "log_softmax: dim must be in [-2, 2), got -3");
  CHECK(error_of([&] { softmax(Tensor::ones({})); }) ==
        "softmax: x must have at least one axis, got a scalar");
  CHECK(error_of([&] { log_softmax(Tensor::ones({})); }) ==
        "log_softmax: x must have at least one axis, got a scalar");
  CHECK(error_of([&] { softmax(x.to(DType::i64)); }) ==
        "softmax: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { log_softmax(x.to(DType::i64)); }) ==
        "log_softmax: dtype must be one of f32, f64, bf16, f16, got i64");
}

}  // namespace weft::softmax_test
