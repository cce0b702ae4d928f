#include <doctest/doctest.h>

#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/mse.h"
#include "weft/tests/support.h"

namespace weft::mse_test {
using test::error_of;
using test::mismatch;

TEST_CASE("mse_loss: none, mean and sum") {
  const Tensor y = Tensor::of({1, 2, 3, 5}, {2, 2}), target = Tensor::of({1, 4, 0, 4}, {2, 2});
  CHECK(mismatch(mse_loss(y, target, Reduction::none), Tensor::of({0, 4, 9, 1}, {2, 2}), 0) == "");
  CHECK(mse_loss(y, target).item() == 3.5);
  CHECK(mse_loss(y, target, Reduction::sum).item() == 14);
  CHECK(std::isnan(mse_loss(Tensor::ones({0}), Tensor::ones({0})).item()));
  CHECK(mse_loss(Tensor::ones({0}), Tensor::ones({0}), Reduction::sum).item() == 0);
}

TEST_CASE("mse_loss: gradients of both operands match finite differences twice") {
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum})
    for (const Shape& s : {Shape{1}, Shape{3, 5}, Shape{0, 2}, Shape{2, 3, 2}}) {
      const auto f = [r](const TensorList& in) { return mse_loss(in[0], in[1], r); };
      GradcheckOptions o;
      o.second_order = true;
      o.step = 1e-5;
      o.tolerance = 1e-5;
      CHECK(gradcheck(f, {test::random(s, 1), test::random(s, 2)}, o) == "");
      CHECK(gradcheck(f, {test::strided(test::random(s, 1)), test::random(s, 2)}) == "");
    }
  const auto one = [](const TensorList& in) { return mse_loss(in[0], in[0] * 2 + 1); };
  CHECK(gradcheck(one, {test::random({4})}) == "");
}

TEST_CASE("mse_loss: every dtype agrees with f64 and meta with cpu") {
  const Tensor y = test::random({3, 5}, 1), target = test::random({3, 5}, 2);
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor a = y.to(t), b = target.to(t);
    CHECK(mismatch(mse_loss(a, b), mse_loss(a.to(DType::f64), b.to(DType::f64)),
                   test::tolerance(t)) == "");
    const Tensor planned = mse_loss(a.to(kMeta), b.to(kMeta));
    CHECK(planned.shape() == Shape{});
    CHECK(planned.dtype() == t);
  }
}

TEST_CASE("mse_loss: errors name the rule and the values") {
  const Tensor y = Tensor::ones({2, 3});
  CHECK(error_of([&] { mse_loss(y, Tensor::ones({3})); }) ==
        "mse_loss: target must have y's shape [2, 3], got [3]");
  CHECK(error_of([&] {
          mse_loss(y, Tensor::ones({2, 3}, DType::f64));
        }) == "mse_loss: target must have y's dtype f32, got f64");
  CHECK(error_of([&] { mse_loss(y, y.to(kMeta)); }) ==
        "mse_loss: target must be on y's device cpu, got meta");
  const Tensor i = Tensor::ones({2}, DType::i64);
  CHECK(error_of([&] { mse_loss(i, i); }) ==
        "mse_loss: dtype must be one of f32, f64, bf16, f16, got i64");
}

}  // namespace weft::mse_test
