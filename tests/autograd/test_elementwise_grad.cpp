#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/values.h"
#include "weft/tests/support.h"

namespace weft::elementwise_grad_test {
using test::mismatch;

namespace {

struct Unary {
  const char* name;
  Tensor (*op)(const Tensor&);
  double low = -2, high = 2;
};
const Unary kUnary[] = {
    {"neg", neg},
    {"exp", exp},
    {"log", log, 0.3, 3},
    {"sqrt", sqrt, 0.3, 3},
    {"rsqrt", rsqrt, 0.3, 3},
    {"abs", abs},
    {"tanh", tanh},
    {"sigmoid", sigmoid},
    {"relu", relu},
    {"square", square},
    {"silu", silu},
    {"softplus", softplus},
    {"gelu_tanh", [](const Tensor& x) { return gelu(x); }},
    {"gelu_erf", [](const Tensor& x) { return gelu(x, Gelu::erf); }},
    {"sin", sin},
    {"cos", cos},
    {"log1p", log1p, -0.7, 2},
    {"expm1", expm1},
    {"erf", erf},
    {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.25); }},
    {"elu", [](const Tensor& x) { return elu(x, 1.5); }},
    {"clamp", [](const Tensor& x) { return clamp(x, -0.5, 1); }},
    {"clamp_min", [](const Tensor& x) { return clamp_min(x, 0.25); }},
    {"clamp_max", [](const Tensor& x) { return clamp_max(x, 0.25); }},
    {"pow 3", [](const Tensor& x) { return pow(x, 3); }},
    {"pow 2", [](const Tensor& x) { return pow(x, 2); }},
    {"pow -1.5", [](const Tensor& x) { return pow(x, -1.5); }, 0.5, 2},
    {"pow 0", [](const Tensor& x) { return pow(x, 0) * x; }},
    {"x + 3", [](const Tensor& x) { return x + 3; }},
    {"x - 3", [](const Tensor& x) { return x - 3; }},
    {"3 - x", [](const Tensor& x) { return 3 - x; }},
    {"x * 3", [](const Tensor& x) { return x * 3; }},
    {"x / 3", [](const Tensor& x) { return x / 3; }},
    {"3 / x", [](const Tensor& x) { return 3 / x; }, 0.5, 2},
    {"minimum", [](const Tensor& x) { return minimum(x, 0.3); }},
    {"maximum", [](const Tensor& x) { return maximum(x, 0.3); }},
};

struct Binary {
  const char* name;
  Tensor (*op)(const Tensor&, const Tensor&);
};
const Binary kBinary[] = {
    {"add", add},
    {"sub", sub},
    {"mul", mul},
    {"div", div},
    {"pow", pow},
    {"minimum", minimum},
    {"maximum", maximum},
    {"where", [](const Tensor& a, const Tensor& b) { return where(a < b, a, b * 2); }},
};

// First and second order. For the second order f is squared, because the gradient of a linear f is
// constant.
template <class F>
std::string check_twice(F f, const TensorList& in) {
  const std::string first = gradcheck(f, in);
  if (!first.empty()) return first;
  GradcheckOptions o;
  o.second_order = true;
  o.step = 1e-5;
  o.tolerance = 1e-5;
  return gradcheck([&](const TensorList& xs) { return square(f(xs)); }, in, o);
}

// d sum(f(x) * r) / dx, with or without an outer tape that records.
Tensor gradient(Tensor (*f)(const Tensor&), const Tensor& x, const Tensor& r, bool nested) {
  Tensor leaf = x.detach();
  leaf.set_requires_grad();
  if (!nested) {
    Tape tape;
    return tape.gradients(f(leaf), {leaf}, r)[0];
  }
  Tape outer;
  Tape inner;
  return inner.gradients(f(leaf), {leaf}, r)[0];
}

Tensor gradient_at(Tensor (*f)(const Tensor&), double x) {
  return gradient(f, Tensor::full({1}, x, DType::f64), Tensor::ones({1}, DType::f64), false);
}

}  // namespace

TEST_CASE("elementwise: the slopes of expm1 and elu keep their digits far below 0") {
  using Op = Tensor (*)(const Tensor&);
  for (const Op op : {Op(expm1), Op([](const Tensor& x) { return elu(x, 1); })})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {  // f16 has no e^-30
      const Tensor x = Tensor::of({-6, -30}, dtype).set_requires_grad();
      Tape tape;
      const Tensor slope = tape.gradients(sum(op(x)), {x})[0].to(DType::f64);
      const Tensor want = exp(x.detach().to(DType::f64));
      CHECK(mismatch(slope / want, Tensor::ones({2}, DType::f64), test::tolerance(dtype)) == "");
    }
}

TEST_CASE("elementwise: unary gradients match finite differences twice") {
  for (const Unary& u : kUnary) {
    CAPTURE(std::string(u.name));
    const auto f = [&](const TensorList& in) { return u.op(in[0]); };
    const auto x = [&](const Shape& s) { return test::random_in(s, u.low, u.high, 5); };
    for (const Tensor& in : {x({1}), x({3, 5}), test::strided(x({2, 3})), x({0, 4}), x({})})
      CHECK(check_twice(f, {in}) == "");
    const auto both = [&](const TensorList& in) { return u.op(in[0]) * in[0] + in[0]; };
    CHECK(check_twice(both, {x({7})}) == "");
  }
}

TEST_CASE("elementwise: binary gradients match finite differences twice under any broadcast") {
  const Shape pairs[][2] = {{{3, 2}, {3, 2}}, {{3, 2}, {2}},    {{2}, {3, 2}},   {{3, 1}, {1, 2}},
                            {{2, 3}, {}},     {{2, 0}, {1, 1}}, {{1}, {2, 1, 2}}};
  for (const Binary& o : kBinary)
    for (const auto& p : pairs) {
      CAPTURE(std::string(o.name));
      CAPTURE(to_string(p[0]));
      CAPTURE(to_string(p[1]));
      const auto f = [&](const TensorList& in) { return o.op(in[0], in[1]); };
      const Tensor a = test::random_in(p[0], 0.5, 2, 1), b = test::random_in(p[1], 0.5, 2, 2);
      CHECK(check_twice(f, {a, b}) == "");
      CHECK(check_twice(f, {test::strided(a), test::strided(b)}) == "");
      const auto one = [&](const TensorList& in) { return o.op(in[0], in[0] * 1.5); };
      CHECK(check_twice(one, {a}) == "");
    }
}

TEST_CASE("elementwise: the same tensor as both operands") {
  const Tensor x = test::random_in({4}, 0.5, 2);
  for (const Binary& o : kBinary) {
    CAPTURE(std::string(o.name));
    CHECK(check_twice([&](const TensorList& in) { return o.op(in[0], in[0]); }, {x}) == "");
  }
}

TEST_CASE("elementwise: fused backward kernels equal the derivative composed of public ops") {
  for (const Unary& u : kUnary) {
    CAPTURE(std::string(u.name));
    for (const DType t : {DType::f64, DType::f32}) {
      const Tensor x = test::random_in({5, 9}, u.low, u.high, 3, t);
      const Tensor r = test::random({5, 9}, 4, t);
      CHECK(mismatch(gradient(u.op, x, r, false), gradient(u.op, x, r, true),
                     t == DType::f64 ? 1e-13 : 1e-5) == "");
    }
  }
}

TEST_CASE("elementwise: bf16 and f32 gradients agree with f64") {
  for (const Unary& u : kUnary)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(std::string(u.name));
      const Tensor x = test::random_in({5, 9}, u.low, u.high, 3, t), r = test::random({5, 9}, 4, t);
      const Tensor got = gradient(u.op, x, r, false);
      CHECK(got.dtype() == t);
      const Tensor want = gradient(u.op, x.to(DType::f64), r.to(DType::f64), false);
      CHECK(mismatch(got, want, 2 * test::tolerance(t)) == "");
    }
}

TEST_CASE("elementwise: kernels accept an expanded cotangent") {
  const Tensor x = test::random({4, 3});
  CHECK(gradcheck([](const TensorList& in) { return sum(gelu(in[0])) + sum(clamp(in[0], -1, 1)); },
                  {x}) == "");
}

TEST_CASE("elementwise: subgradients at kinks and ties") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  CHECK(gradient_at(abs, 0).item() == 0);
  CHECK(gradient_at(relu, 0).item() == 0);
  CHECK(gradient_at(relu, kNan).item() == 1);  // as the result is a NaN too
  CHECK(gradient_at([](const Tensor& x) { return leaky_relu(x, 0.25); }, 0).item() == 0.25);
  CHECK(gradient_at([](const Tensor& x) { return elu(x, 1.5); }, 0).item() == 1.5);
  CHECK(gradient_at([](const Tensor& x) { return elu(x); }, 1e4).item() == 1);
  CHECK(gradient_at([](const Tensor& x) { return x + floor(x) + ceil(x) + round(x); }, 2).item() ==
        1);
  const auto clamped = [](const Tensor& x) { return clamp(x, -1, 1); };
  CHECK(gradient_at(clamped, 1).item() == 1);  // the interval is closed
  CHECK(gradient_at(clamped, -1).item() == 1);
  CHECK(gradient_at(clamped, 1.001).item() == 0);
  CHECK(gradient_at([](const Tensor& x) { return maximum(x, 2); }, 2).item() == 0.5);
  CHECK(gradient_at([](const Tensor& x) { return minimum(x, 2); }, 2).item() == 0.5);
  CHECK(gradient_at([](const Tensor& x) { return pow(x, 0); }, 0).item() == 0);

  Tensor a = Tensor::of({1, 2, 3}, {3}), b = Tensor::of({2, 2, 2}, {3});
  a.set_requires_grad();
  b.set_requires_grad();
  for (const bool larger : {false, true}) {
    Tape tape;
    const Tensor y = larger ? maximum(a, b) : minimum(a, b);
    const TensorList g = tape.gradients(y, {a, b}, Tensor::ones({3}));
    CHECK(mismatch(g[larger ? 0 : 1], Tensor::of({0, 0.5, 1}, {3}), 0) == "");
    CHECK(mismatch(g[larger ? 1 : 0], Tensor::of({1, 0.5, 0}, {3}), 0) == "");
  }
}

TEST_CASE("elementwise: slopes of f16 quotients whose factors leave the range") {
  // dy / b is 80,000 in the first and y / b in the second; both slopes are below 5,000.
  const double cases[][3] = {{0.0025, 0.05, 4000}, {3.2, 0.005, 0.01}};  // a, b, dy
  for (const auto& [na, nb, ndy] : cases) {
    const Tensor a = Tensor::full({1}, na, DType::f16).set_requires_grad();
    const Tensor b = Tensor::full({1}, nb, DType::f16).set_requires_grad();
    const double x = a.item(), z = b.item(), want = -ndy * x / (z * z);
    const Tensor dy = Tensor::full({1}, ndy, DType::f16);
    Tape tape;
    const Tensor db = tape.gradients(a / b, {b}, dy)[0];
    CHECK(db.item() == doctest::Approx(want).epsilon(2e-3));
    Tape number;
    CHECK(number.gradients(x / b, {b}, dy)[0].item() == doctest::Approx(want).epsilon(2e-3));
  }
}

TEST_CASE("elementwise: the slope of silu is 0 far below 0") {
  for (const double x : {-200.0, -1e4, -1e30, -1e38})
    for (const DType t : {DType::f32, DType::bf16, DType::f64}) {
      const Tensor at = Tensor::full({19}, x, t).set_requires_grad();
      Tape tape;
      CHECK(abs(tape.gradients(silu(at), {at}, Tensor::ones({19}, t))[0]).max().item() < 1e-30);
    }
}

TEST_CASE("elementwise: the slope of tanh GELU is 0 or 1 far from 0") {
  for (const DType t : {DType::f32, DType::bf16, DType::f64})
    for (const double x : {1e4, 1e19, 1e20, 1e38, t == DType::f64 ? 1e200 : 3e38})
      for (const double side : {-1.0, 1.0}) {
        CAPTURE(x);
        CAPTURE(side);
        const Tensor at = Tensor::full({19}, side * x, t).set_requires_grad();
        Tape tape;
        const Tensor slope = tape.gradients(gelu(at, Gelu::tanh), {at}, Tensor::ones({19}, t))[0];
        CHECK(abs(slope - (side > 0 ? 1 : 0)).max().item() < 1e-20);
      }
}

TEST_CASE("elementwise: powers of zero have finite gradients") {
  Tensor a = Tensor::of({0, 0, 2}, {3}, DType::f64), b = Tensor::of({2, 0, 0}, {3}, DType::f64);
  a.set_requires_grad();
  b.set_requires_grad();
  Tape tape;
  const TensorList g = tape.gradients(pow(a, b), {a, b}, Tensor::ones({3}, DType::f64));
  CHECK(mismatch(g[0], Tensor::zeros({3}), 0) == "");
  CHECK(g[1].slice(0, 0, 1).item() == 0);
  CHECK(mismatch(g[1].slice(0, 2), Tensor::of({std::log(2.0)}, {1}, DType::f64), 1e-15) == "");
}

TEST_CASE("elementwise: an in-place change of a saved operand is an error") {
  Tensor w = Tensor::ones({2});
  w.set_requires_grad();
  const Tensor x = Tensor::ones({2});
  Tape tape;
  const Tensor loss = sum(w * x);
  x.fill_(3);
  CHECK(test::error_of([&] { loss.backward(); }) ==
        "mul: saved b was changed in place (version 2, saved at 1)");
}

TEST_CASE("elementwise: the operand that is not selected gets 0 for any cotangent") {
  constexpr double kInf = INFINITY;
  const auto leaf = [](std::initializer_list<double> v) {
    return Tensor::of(v, {static_cast<std::int64_t>(v.size())}, DType::f64).set_requires_grad();
  };
  using Values = std::vector<double>;
  {
    const Tensor x = leaf({-1, 4}), z = leaf({0, 0});
    Tape tape;
    const TensorList g = tape.gradients(sum(log(maximum(x, z))), {x, z});
    CHECK(test::values(g[0]) == Values{0, 0.25});
    CHECK(test::values(g[1]) == Values{kInf, 0});
  }
  {
    const Tensor x = leaf({1, -4}), z = leaf({0, 0});
    Tape tape;
    const TensorList g = tape.gradients(sum(log(neg(minimum(x, z)))), {x, z});
    CHECK(test::values(g[0]) == Values{0, -0.25});
    CHECK(test::values(g[1]) == Values{kInf, 0});
  }
  for (const bool nested : {false, true})
    for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      const Tensor x = Tensor::of({-1, 4, 0, NAN}, {4}, t), r = Tensor::of({kInf, 3, 8, 2}, {4}, t);
      const auto at = [&](Tensor (*f)(const Tensor&)) {
        return test::values(gradient(f, x, r, nested));
      };
      CHECK(at([](const Tensor& v) { return maximum(v, 0); }) == Values{0, 3, 4, 1});
      CHECK(at([](const Tensor& v) { return minimum(v, 0); }) == Values{kInf, 0, 4, 1});
      CHECK(at([](const Tensor& v) { return pow(v, 0); }) == Values{0, 0, 0, 0});
      CHECK(at([](const Tensor& v) { return pow(v, Tensor::zeros({}, v.dtype())); }) ==
            Values{0, 0, 0, 0});
    }
  // The number is not rounded to bf16: 0.1 is less than the nearest bf16 value.
  const Tensor tenth = Tensor::full({1}, 0.1, DType::bf16), one = Tensor::ones({1}, DType::bf16);
  CHECK(tenth.item() > 0.1);
  CHECK(gradient([](const Tensor& v) { return maximum(v, 0.1); }, tenth, one, false).item() == 1);
}

TEST_CASE("elementwise: abs at 0, a^0 and 0^b pass 0 back for any cotangent") {
  constexpr double kInf = INFINITY;
  const Tensor inf = Tensor::full({1}, kInf, DType::f64);
  for (const bool nested : {false, true})
    CHECK(gradient(abs, Tensor::zeros({1}, DType::f64), inf, nested).item() == 0);
  for (const double base : {0.0, 1.0, -2.0, kInf})
    for (const double exponent : {0.0, 0.5, 1.0, 2.0, -1.0})
      for (const double dy : {1.0, kInf}) {
        CAPTURE(base);
        CAPTURE(exponent);
        const Tensor a = Tensor::full({1}, base, DType::f64).set_requires_grad();
        const Tensor b = Tensor::full({1}, exponent, DType::f64).set_requires_grad();
        Tape tape;
        const TensorList g = tape.gradients(pow(a, b), {a, b}, Tensor::full({1}, dy, DType::f64));
        if (exponent == 0) CHECK(g[0].item() == 0);
        if (base == 0) CHECK(g[1].item() == (exponent < 0 ? -kInf : 0));
      }
  // The derivatives of those gradients are finite too.
  for (const double exponent : {0.0, 2.0}) {
    const Tensor a = Tensor::zeros({1}, DType::f64).set_requires_grad();
    const Tensor b = Tensor::full({1}, exponent, DType::f64).set_requires_grad();
    Tape outer;
    TensorList g;
    {
      Tape inner;
      g = inner.gradients(pow(a, b), {a, b});
    }
    const TensorList second = outer.gradients(sum(g[0] + g[1]), {a, b});
    CHECK(second[0].item() == exponent);  // 2 for a^2, 0 for a^0
    CHECK(second[1].item() == 0);
  }
}

TEST_CASE("elementwise: slopes of activations in 16 bits, with a tape around the tape") {
  const auto silu_of = [](const Tensor& x) { return silu(x); };
  const auto gelu_of = [](const Tensor& x) { return gelu(x, Gelu::tanh); };
  for (const DType dtype : {DType::f16, DType::bf16})
    for (Tensor (*f)(const Tensor&) : {+silu_of, +gelu_of}) {
      const Tensor x = Tensor::of({300, -300, 1.5, -0.75, 5, -5}, {6}, dtype);
      const Tensor dy = Tensor::ones({6}, dtype);
      // One rounding apart.
      const double bound = dtype == DType::f16 ? 1e-3 : 8e-3;
      CHECK(test::mismatch(gradient(f, x, dy, true), gradient(f, x, dy, false), bound) == "");
    }
  const Tensor x = Tensor::of({300, -300}, {2}, DType::f16).set_requires_grad();
  Tape outer;
  Tensor slope;
  {
    Tape inner;
    slope = inner.gradients(sum(gelu(x, Gelu::erf)), {x})[0];
  }
  CHECK(equal(outer.gradients(slope, {x}, Tensor::ones({2}, DType::f16))[0],
              Tensor::zeros({2}, DType::f16)));
}

TEST_CASE("elementwise: gradients past numbers that where and masked_fill take") {
  const Tensor mask = Tensor::of({1, 0, 1}, {3}, DType::boolean), x = test::random({2, 3});
  CHECK(check_twice([&](const TensorList& in) { return where(mask, in[0], 2); }, {x}) == "");
  CHECK(check_twice([&](const TensorList& in) { return where(mask, 2, in[0]); }, {x}) == "");
  CHECK(check_twice([&](const TensorList& in) { return masked_fill(in[0], mask, 2); }, {x}) == "");
}

}  // namespace weft::elementwise_grad_test
