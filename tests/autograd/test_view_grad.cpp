// First and second gradients of views, joins and copies.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/view.h"
#include "weft/tests/support.h"

namespace weft::view_test {
namespace {

using test::random;
using test::strided;

using UnaryCase = std::function<Tensor(const Tensor&)>;

const GradcheckOptions kTwice{.second_order = true};

// First and second gradients. x*x makes the op's gradient depend on x.
std::string check_gradients(const UnaryCase& f, const Tensor& x) {
  const auto squared = [&](const TensorList& in) { return f(in[0] * in[0]); };
  std::string wrong = gradcheck([&](const TensorList& in) { return f(in[0]); }, {x});
  if (wrong.empty()) wrong = gradcheck(squared, {x}, kTwice);
  if (wrong.empty()) wrong = gradcheck(squared, {strided(x)}, kTwice);
  return wrong;
}

}  // namespace

TEST_CASE("view: first and second gradients of contiguous and strided inputs") {
  const Tensor x = random({2, 3, 4});
  struct Case {
    const char* label;
    UnaryCase f;
    bool for_empty = true;  ///< also valid for (2, 3, 0)
  };
  const Case cases[] = {
      {"view",
       [](const Tensor& t) {
         return reshape(t, {4, -1});
       },
       false},
      {"permute",
       [](const Tensor& t) {
         return permute(t, {2, 0, 1});
       }},
      {"transpose", [](const Tensor& t) { return transpose(t, 0, 1); }},
      {"reshape by copy",
       [](const Tensor& t) {
         return reshape(t.transpose(0, 2), {6, 4});
       },
       false},
      {"expand",
       [](const Tensor& t) {
         return expand(t.unsqueeze(1), {3, 2, 5, 3, -1});
       }},
      {"slice", [](const Tensor& t) { return slice(t, 2, 1, kEnd, 2); }},
      {"empty slice", [](const Tensor& t) { return slice(t, 1, 2, 2); }},
      {"narrow", [](const Tensor& t) { return narrow(t, 1, 1, 2); }},
      {"select", [](const Tensor& t) { return select(t, 0, -1); }},
      {"squeeze", [](const Tensor& t) { return squeeze(t.narrow(1, 1, 1), 1); }},
      {"unsqueeze", [](const Tensor& t) { return unsqueeze(t, 2); }},
      {"flatten", [](const Tensor& t) { return flatten(t, 1); }},
      {"contiguous", [](const Tensor& t) { return contiguous(t.t()); }},
      {"clone", [](const Tensor& t) { return clone(t); }},
      {"pad", [](const Tensor& t) { return pad(t, 1, 2, 1, 3); }},
      {"roll", [](const Tensor& t) { return roll(t, 3, 2); }},
      {"cat",
       [](const Tensor& t) {
         return cat({t, t * 2.0, t.narrow(1, 0, 1)}, 1);
       }},
      {"stack",
       [](const Tensor& t) {
         return stack({t, t * t}, 1);
       }},
      {"split",
       [](const Tensor& t) {
         const TensorList p = split(t, 2, 1);
         return cat({p[1] * 2.0, p[0]}, 1);
       }},
      {"split, pieces unused",
       [](const Tensor& t) {
         return split(t, {1, 0, 1, 1}, 1)[2] * 3.0;
       }},
  };
  for (const auto& [label, f, for_empty] : cases) {
    CAPTURE(std::string(label));
    CHECK(check_gradients(f, x) == "");
    if (for_empty) CHECK(check_gradients(f, Tensor::empty({2, 3, 0}, DType::f64)) == "");
  }
}

TEST_CASE("view: cast passes the gradient back in the dtype of x") {
  Tensor x = random({2, 3}, 1, DType::f32);
  x.set_requires_grad();
  Tape tape;
  const Tensor y = cast(x, DType::bf16);
  y.backward(Tensor::full({2, 3}, 0.1, DType::bf16));
  CHECK(x.grad().dtype() == DType::f32);
  CHECK(x.grad().select(0, 0).select(0, 0).item() == static_cast<double>(bf16(0.1f)));
}

TEST_CASE("view: gradients of view and of a cast to f32 and back") {
  const auto viewed = [](const Tensor& x) { return view(x.clone(), {3, -1}); };
  CHECK(check_gradients(viewed, random({2, 3, 2})) == "");
  CHECK(check_gradients(
            [](const Tensor& x) {
              return view(x.clone(), {0, 4});
            },
            random({2, 0, 2})) == "");
  // Through f32 a difference is exact only to 1e-7, so its step must be large.
  const auto through_f32 = [](const TensorList& in) {
    return cast(cast(in[0], DType::f32), DType::f64);
  };
  const GradcheckOptions wide{.step = 0.125, .tolerance = 1e-5};
  CHECK(gradcheck(through_f32, {random({2, 5})}, wide) == "");
  CHECK(gradcheck(through_f32, {strided(random({2, 5}))}, wide) == "");
}

TEST_CASE("view: split and cat of many pieces pass every gradient") {
  CHECK(gradcheck(
            [](const TensorList& in) {
              TensorList parts = split(in[0] * in[0], 1), kept;
              for (int i = 0; i < parts.size(); i += 2) kept.push_back(parts[i] * (i + 1.0));
              return cat(kept);
            },
            {random({21})}, kTwice) == "");
}

}  // namespace weft::view_test
