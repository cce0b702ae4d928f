// Functions with a handwritten backward, and gradcheck, which detects a wrong one.
#include <doctest/doctest.h>

#include <string>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/function.h"
#include "weft/autograd/reduce.h"
#include "weft/tests/support.h"
#include "weft/tests/tape_support.h"

namespace weft::custom_function_test {
using tape_test::leaf;

TEST_CASE("custom_function: a handwritten backward works twice") {
  const auto cube = [](const TensorList& in) {
    return custom_function(
        "cube", {in[0]}, [](const TensorList& x) { return x[0] * x[0] * x[0]; },
        [](const TensorList& x, const Tensor&, const Tensor& dy) {
          return TensorList{dy * x[0] * x[0] * 3.0};
        });
  };
  CHECK(gradcheck(cube, {test::random({3, 2})}, {.tolerance = 1e-5, .second_order = true}) == "");
}

TEST_CASE("gradcheck: the second order of a linear function is 0, and an unrecorded op is found") {
  GradcheckOptions twice;
  twice.second_order = true;
  CHECK(gradcheck([](const TensorList& in) { return in[0] * 3 + 1; }, {test::random({3})}, twice) ==
        "");
  CHECK(gradcheck([](const TensorList& in) { return leaky_relu(in[0]); }, {test::random({3})},
                  twice) == "");
  CHECK(gradcheck([](const TensorList& in) { return floor(in[0]); }, {test::random({3})}) == "");
  CHECK(gradcheck([](const TensorList& in) { return in[0].detach() * 2; }, {test::random({3})}) !=
        "");
}

TEST_CASE("custom_function: a wrong backward is detected and a wrong count refused") {
  const auto wrong = [](const TensorList& in) {
    return custom_function(
        "wrong", {in[0]}, [](const TensorList& x) { return x[0] * x[0]; },
        [](const TensorList& x, const Tensor&, const Tensor& dy) {
          return TensorList{dy * x[0] * 2.5};
        });
  };
  CHECK(gradcheck(wrong, {test::random({3})}) != "");
  const Tensor x = leaf({2});
  Tape tape;
  const Tensor y = custom_function(
      "short", {x}, [](const TensorList& in) { return in[0] * 1.0; },
      [](const TensorList&, const Tensor&, const Tensor&) { return TensorList{}; });
  CHECK(test::error_of([&] { sum(y).backward(); }) ==
        "short: backward must return 1 gradients, got 0");
}

TEST_CASE("custom_function: gradients of another shape or dtype are refused") {
  const Tensor x = leaf({3}), w = leaf({2, 3});
  const auto refused = [&](const Tensor& dw) {
    Tape tape;
    const Tensor y = custom_function(
        "odd", {x, w}, [](const TensorList& in) { return sum(in[0] * in[1]); },
        [&](const TensorList& in, const Tensor&, const Tensor& dy) {
          return TensorList{dy * sum(in[1], {0}), dw};
        });
    return test::error_of([&] { y.backward(); });
  };
  CHECK(refused(Tensor::ones({3}, DType::f64)) ==
        "odd: the gradient of input 1 must have shape [2, 3] and dtype f64, got [3] and f64");
  CHECK(refused(Tensor::ones({2, 3}, DType::f32)) ==
        "odd: the gradient of input 1 must have shape [2, 3] and dtype f64, got [2, 3] and f32");
  CHECK(refused({}) == "no error");
}

TEST_CASE("custom_function: what forward returns stays as it is") {
  const Tensor x = leaf({3}), constant = test::random({3}, 2);
  const auto backward = [](const TensorList&, const Tensor&, const Tensor& dy) {
    return TensorList{dy, {}};
  };
  Tape tape;
  // A constant from outside, an input without gradient, and integers.
  const Tensor y = custom_function(
      "same", {x, {}}, [&](const TensorList&) { return constant; }, backward);
  const Tensor input = custom_function(
      "same", {x, constant}, [](const TensorList& in) { return in[1]; }, backward);
  const Tensor index = custom_function(
      "same", {x, {}}, [](const TensorList&) { return Tensor::ones({3}, DType::i64); }, backward);
  CHECK(y.requires_grad());
  CHECK(input.requires_grad());
  CHECK_FALSE(constant.requires_grad());
  CHECK_FALSE(index.requires_grad());
  sum(y + input).backward();
  CHECK(test::mismatch(x.grad(), Tensor::full({3}, 2, DType::f64), 0) == "");
}

TEST_CASE("tape: a gradient of the wrong shape for any output is refused") {
  const Tensor x = leaf({2});
  for (int wrong = 0; wrong < 2; ++wrong) {
    Tape tape;
    const Tensor outputs[] = {x.detach() * 1.0, x.detach() * 2.0};
    Tape::record("pair", {&x}, {&outputs[0], &outputs[1]},
                 [](Backward& b) { b.add(0, b.dy(0) + b.dy(1)); });
    const Tensor loss = sum(outputs[1 - wrong]);
    Tape::record("careless", {&outputs[wrong]}, {&loss},
                 [](Backward& b) { b.add(0, Tensor::ones({3}, DType::f64)); });
    CHECK(test::error_of([&] { loss.backward(); }) ==
          "pair: gradient must have shape [2], got [3]");
  }
}

TEST_CASE("gradcheck: an input that repeats its elements") {
  const Tensor row = test::random({1, 3}).expand({2, 3});
  CHECK(gradcheck([](const TensorList& in) { return in[0] * in[0]; }, {row}) == "");
}

TEST_CASE(
    "custom_function: a forward that returns nothing is refused and a null input is allowed") {
  const Tensor x = leaf({3});
  const auto backward = [](const TensorList&, const Tensor&, const Tensor& dy) {
    return TensorList{dy, Tensor()};
  };
  const auto nothing = [](const TensorList&) { return Tensor(); };
  const std::string want = "half: forward must return a tensor, got a null handle";
  CHECK(test::error_of([&] { custom_function("half", {x, {}}, nothing, backward); }) == want);
  Tape tape;
  CHECK(test::error_of([&] { custom_function("half", {x, {}}, nothing, backward); }) == want);
  const Tensor y = custom_function(
      "half", {x, {}}, [](const TensorList& in) { return in[0] * 1.0; }, backward);
  sum(y).backward();
  CHECK(test::mismatch(x.grad(), Tensor::ones({3}, DType::f64), 0) == "");
}

}  // namespace weft::custom_function_test
