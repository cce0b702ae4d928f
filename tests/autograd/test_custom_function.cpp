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
