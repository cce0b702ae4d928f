// x += y and its relatives, and x[i].
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/tests/support.h"

namespace weft::assign_test {
using test::error_of;
using test::mismatch;

TEST_CASE("assign: +=, -=, *=, /= write to the memory of x") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const Tensor a = test::random_in({3, 5}, 1, 2, 1, t), b = test::random_in({3, 5}, 1, 2, 2, t);
    const Tensor row = b.select(0, 0);
    for (const bool gaps : {false, true}) {
      const auto fresh = [&] { return gaps ? test::strided(a) : a.clone(); };
      const auto is = [&](const Tensor& x, const Tensor& want) {
        return mismatch(x, want, test::tolerance(t)) == "";
      };
      Tensor x = fresh(), other = x;
      x += b;
      CHECK(is(other, a + b));
      CHECK(is(fresh() -= b, a - b));
      CHECK(is(fresh() *= b, a * b));
      CHECK(is(fresh() /= b, a / b));
      CHECK(is(fresh() += row, a + row));
      CHECK(is(fresh() -= row, a - row));
      CHECK(is(fresh() *= row, a * row));
      CHECK(is(fresh() /= row, a / row));
      CHECK(is(fresh() += 3, a + 3));
      CHECK(is(fresh() -= 3, a - 3));
      CHECK(is(fresh() *= 3, a * 3));
      CHECK(is(fresh() /= 3, a / 3));
      CHECK(is(fresh() += a.t().t(), a + a));
    }
  }
  Tensor i = Tensor::of({1, 2}, {2}, DType::u8);
  i += 5;
  i -= 1;
  i *= 2;
  CHECK(test::values(i) == std::vector<double>{10, 12});
}

TEST_CASE("assign: x[i] is a view of the first axis, to write as well as to read") {
  Tensor x = Tensor::of({{1, 2}, {3, 4}});
  CHECK(x[1][0].item() == 3);
  CHECK(x[-1].shape() == Shape{2});
  x[0] += 5;
  x[1].fill_(9);
  CHECK(test::values(x) == std::vector<double>{6, 7, 9, 9});
  CHECK(error_of([&] { x[2]; }) == "select: index must be in [-2, 2), got 2");
  CHECK(gradcheck([](const TensorList& in) { return in[0][1] * in[0][0]; },
                  {test::random({2, 3})}) == "");
}

TEST_CASE("assign: a tape is not deceived") {
  const std::string tail =
      ": cannot change a tensor that is part of a recording; use the out-of-place op, or a "
      "NoGradGuard, got shape [2]";
  Tensor w = Tensor::ones({2}).set_requires_grad(), x = Tensor::ones({2}), row = Tensor::ones({1});
  Tape tape;
  Tensor y = w * 2;
  CHECK(error_of([&] { w += row; }) == "+=" + tail);
  CHECK(error_of([&] { y -= row; }) == "-=" + tail);
  CHECK(error_of([&] { w *= x; }) == "*=" + tail);
  CHECK(error_of([&] { y /= x; }) == "/=" + tail);
  CHECK(error_of([&] { w += 1; }) == "+=" + tail);
  CHECK(error_of([&] { w += x; }) == "add_" + tail);
  CHECK(error_of([&] { w *= 2; }) == "mul_" + tail);
  CHECK(error_of([&] { x *= w; }) ==
        "*=: y is part of a recording, and its gradient would end here; give y.detach(), or use "
        "the out-of-place op, got shape [2]");
  {
    const NoGradGuard off;
    w += 1;
  }
  CHECK(test::values(w) == std::vector<double>{2, 2});
  // backward() reports a write to a tensor that an op has saved.
  const Tensor loss = sum(w * x);
  x += 1;
  CHECK(error_of([&] { loss.backward(); }) ==
        "mul: saved b was changed in place (version 2, saved at 1)");
}

TEST_CASE("assign: errors name the rule and the value") {
  Tensor x = Tensor::ones({2}), none;
  CHECK(error_of([&] { x += Tensor::ones({3}); }) == "add: shapes must broadcast, got [2] and [3]");
  CHECK(error_of([&] {
          x += Tensor::ones({2, 2});
        }) == "+=: y must broadcast to shape [2], got [2, 2]");
  CHECK(error_of([&] { none += x; }) == "+=: the tensor must be a tensor, got a null handle");
  CHECK(error_of([&] { none /= 2; }) == "/=: the tensor must be a tensor, got a null handle");
  CHECK(error_of([&] { x *= none; }) == "*=: y must be a tensor, got a null handle");
  Tensor i = Tensor::ones({2}, DType::i64);
  CHECK(error_of([&] { i /= 2; }) == "div: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { i += 0.5; }) ==
        "add: the number must be whole for a tensor of i64, got 0.5");
}

}  // namespace weft::assign_test
