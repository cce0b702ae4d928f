// Values, broadcasting, dtypes, devices and messages. Gradients are in test_elementwise_grad.cpp,
// comparisons in test_elementwise_compare.cpp, integers in test_elementwise_integers.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/core/parallel.h"
#include "weft/tests/elementwise_support.h"
#include "weft/tests/support.h"

namespace weft::elementwise_test {
using test::error_of;
using test::mismatch;

namespace {

const DType kFloats[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
const Shape kShapes[] = {{}, {1}, {17}, {1, 5}, {3, 5}, {2, 3, 7}, {4, 1025}, {0, 4}, {3, 0}};

struct Unary {
  const char* name;
  Tensor (*op)(const Tensor&);
  double (*definition)(double);
  double low, high;
};
const Unary kUnary[] = {
    {"neg", neg, [](double x) { return -x; }, -3, 3},
    {"exp", exp, [](double x) { return std::exp(x); }, -3, 3},
    {"log", log, [](double x) { return std::log(x); }, 0.1, 3},
    {"sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0.1, 3},
    {"rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.1, 3},
    {"abs", abs, [](double x) { return x < 0 ? -x : x; }, -3, 3},
    {"tanh", tanh, [](double x) { return 1 - 2 / (std::exp(2 * x) + 1); }, -3, 3},
    {"sigmoid", sigmoid, [](double x) { return 0.5 + 0.5 * std::tanh(x / 2); }, -8, 8},
    {"relu", relu, [](double x) { return x > 0 ? x : 0; }, -3, 3},
    {"square", square, [](double x) { return x * x; }, -3, 3},
    {"silu", silu, [](double x) { return x * (0.5 + 0.5 * std::tanh(x / 2)); }, -8, 8},
    {"softplus", softplus, [](double x) { return std::log(1 + std::exp(x)); }, -8, 8},
    {"gelu_tanh", [](const Tensor& x) { return gelu(x); },
     [](double x) {
       return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
     },
     -5, 5},
    {"gelu_erf", [](const Tensor& x) { return gelu(x, Gelu::erf); },
     [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }, -5, 5},
    {"sin", sin, [](double x) { return std::sin(x); }, -9, 9},
    {"cos", cos, [](double x) { return std::cos(x); }, -9, 9},
    {"log1p", log1p, [](double x) { return std::log1p(x); }, -0.9, 3},
    {"expm1", expm1, [](double x) { return std::expm1(x); }, -3, 3},
    {"erf", erf, [](double x) { return 1 - std::erfc(x); }, -3, 3},
    {"floor", floor, [](double x) { return x - std::fmod(x, 1) - (std::fmod(x, 1) < 0); }, -3, 3},
    {"ceil", ceil, [](double x) { return x - std::fmod(x, 1) + (std::fmod(x, 1) > 0); }, -3, 3},
    {"round", round, [](double x) { return x - std::remainder(x, 1); }, -3, 3},
    {"sign", sign, [](double x) { return x < 0 ? -1.0 : 1.0; }, -3, 3},
    {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.25); },
     [](double x) { return x < 0 ? x / 4 : x; }, -3, 3},
    {"elu", [](const Tensor& x) { return elu(x, 1.5); },
     [](double x) { return x < 0 ? 1.5 * (std::exp(x) - 1) : x; }, -3, 3},
    {"clamp", [](const Tensor& x) { return clamp(x, -0.5, 1.25); },
     [](double x) { return std::min(1.25, std::max(-0.5, x)); }, -3, 3},
    {"clamp_min", [](const Tensor& x) { return clamp_min(x, 0.5); },
     [](double x) { return std::max(x, 0.5); }, -3, 3},
    {"clamp_max", [](const Tensor& x) { return clamp_max(x, 0.5); },
     [](double x) { return std::min(x, 0.5); }, -3, 3},
    {"pow 3", [](const Tensor& x) { return pow(x, 3); }, [](double x) { return x * x * x; }, -2, 2},
    {"pow 2", [](const Tensor& x) { return pow(x, 2); }, [](double x) { return x * x; }, -2, 2},
    {"pow 0.5", [](const Tensor& x) { return pow(x, 0.5); }, [](double x) { return std::sqrt(x); },
     0.1, 2},
    {"pow -0.5", [](const Tensor& x) { return pow(x, -0.5); },
     [](double x) { return 1 / std::sqrt(x); }, 0.1, 2},
    {"x + 2.5", [](const Tensor& x) { return 2.5 + x; }, [](double x) { return x + 2.5; }, -3, 3},
    {"x - 2.5", [](const Tensor& x) { return x - 2.5; }, [](double x) { return x - 2.5; }, -3, 3},
    {"2.5 - x", [](const Tensor& x) { return 2.5 - x; }, [](double x) { return 2.5 - x; }, -3, 3},
    {"x * 2.5", [](const Tensor& x) { return 2.5 * x; }, [](double x) { return x * 2.5; }, -3, 3},
    {"x / 2.5", [](const Tensor& x) { return x / 2.5; }, [](double x) { return x / 2.5; }, -3, 3},
    {"2.5 / x", [](const Tensor& x) { return 2.5 / x; }, [](double x) { return 2.5 / x; }, 0.5, 3},
    {"minimum 0.5", [](const Tensor& x) { return minimum(x, 0.5); },
     [](double x) { return std::min(x, 0.5); }, -3, 3},
    {"maximum 0.5", [](const Tensor& x) { return maximum(x, 0.5); },
     [](double x) { return std::max(x, 0.5); }, -3, 3},
};

struct Binary {
  const char* name;
  Tensor (*op)(const Tensor&, const Tensor&);
  double (*definition)(double, double);
};
const Binary kBinary[] = {
    {"add", add, [](double a, double b) { return a + b; }},
    {"sub", sub, [](double a, double b) { return a - b; }},
    {"mul", mul, [](double a, double b) { return a * b; }},
    {"div", div, [](double a, double b) { return a / b; }},
    {"pow", pow, [](double a, double b) { return std::exp(b * std::log(a)); }},
    {"minimum", minimum, [](double a, double b) { return a < b ? a : b; }},
    {"maximum", maximum, [](double a, double b) { return a < b ? b : a; }},
};

}  // namespace

TEST_CASE("elementwise: unary ops follow the definition for every dtype, shape and layout") {
  for (const Unary& u : kUnary)
    for (const Shape& s : kShapes)
      for (const DType t : kFloats) {
        CAPTURE(std::string(u.name));
        CAPTURE(to_string(s));
        const Tensor x = test::random_in(s, u.low, u.high, 3, t);
        const Tensor want = map(x, u.definition);
        CHECK(u.op(x).dtype() == t);
        CHECK(mismatch(u.op(x), want, test::tolerance(t)) == "");
        CHECK(mismatch(u.op(test::strided(x)), want, test::tolerance(t)) == "");
      }
}

TEST_CASE("elementwise: binary ops follow the definition for every dtype, shape and layout") {
  for (const Binary& o : kBinary)
    for (const Shape& s : kShapes)
      for (const DType t : kFloats) {
        CAPTURE(std::string(o.name));
        CAPTURE(to_string(s));
        const Tensor a = test::random_in(s, 0.5, 3, 3, t), b = test::random_in(s, 0.5, 3, 4, t);
        const Tensor want = map(a, b, o.definition);
        CHECK(mismatch(o.op(a, b), want, test::tolerance(t)) == "");
        CHECK(mismatch(o.op(test::strided(a), b), want, test::tolerance(t)) == "");
        CHECK(mismatch(o.op(a, test::strided(b)), want, test::tolerance(t)) == "");
      }
}

TEST_CASE("elementwise: broadcasting follows NumPy's rule") {
  const Shape pairs[][2] = {{{3, 5}, {5}},       {{3, 5}, {3, 1}},    {{3, 1}, {1, 5}},
                            {{2, 3, 5}, {3, 5}}, {{2, 3, 5}, {}},     {{2, 1, 5}, {3, 1}},
                            {{1}, {4, 1, 2}},    {{2, 0, 3}, {1, 3}}, {{40, 1025}, {1025}}};
  for (const auto& pair : pairs)
    for (const bool swapped : {false, true}) {
      const Tensor a = test::random(pair[swapped], 1), b = test::random(pair[!swapped], 2);
      CAPTURE(to_string(a.shape()));
      CAPTURE(to_string(b.shape()));
      const Shape out = broadcast_shapes("test", a.shape(), b.shape());
      const Tensor wa = expand(a, out).clone(), wb = expand(b, out).clone();
      const Tensor want = map(wa, wb, [](double x, double y) { return x - y; });
      CHECK(mismatch(a - b, want, 0) == "");
      CHECK(mismatch((a < b).to(DType::f64),
                     map(wa, wb, [](double x, double y) { return x < y ? 1.0 : 0.0; }), 0) == "");
      CHECK(mismatch(where(a < b, a, b),
                     map(wa, wb, [](double x, double y) { return x < y ? x : y; }), 0) == "");
    }
}

TEST_CASE("elementwise: transposed and sliced operands") {
  const Tensor a = test::random({6, 4, 5}, 1), b = test::random({5, 4, 6}, 2);
  const Tensor view = b.permute({2, 1, 0}), copy = view.clone();
  CHECK(mismatch(a + view, map(a, copy, [](double x, double y) { return x + y; }), 0) == "");
  const Tensor part = test::random({9, 20}, 3).slice(0, 1, 8, 2).slice(1, 3, 17, 3);
  CHECK(mismatch(exp(part), map(part.clone(), [](double x) { return std::exp(x); }), 1e-15) == "");
}

TEST_CASE("elementwise: rounding goes to the even one of two, and leaves whole numbers") {
  for (const DType t : kFloats) {
    const Tensor x = Tensor::of({-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 7}, {7}, t);
    CHECK(mismatch(round(x), Tensor::of({-2, -2, 0, 0, 2, 2, 7}, {7}), 0) == "");
    CHECK(mismatch(floor(x), Tensor::of({-3, -2, -1, 0, 1, 2, 7}, {7}), 0) == "");
    CHECK(mismatch(ceil(x), Tensor::of({-2, -1, 0, 1, 2, 3, 7}, {7}), 0) == "");
    CHECK(mismatch(sign(x), Tensor::of({-1, -1, -1, 1, 1, 1, 1}, {7}), 0) == "");
    CHECK(sign(Tensor::of({0, kNan}, {2}, t)).sum().item() == 0);
  }
  for (const DType t : {DType::i32, DType::i64, DType::u8}) {
    const Tensor x = Tensor::of({0, 3, 9}, {3}, t);
    for (const Tensor& y : {round(x), floor(x), ceil(x)}) CHECK(test::different_bits(x, y) == "");
    CHECK(test::different_bits(sign(x), Tensor::of({0, 1, 1}, {3}, t)) == "");
  }
  CHECK(sign(Tensor::of({-4}, {1}, DType::i32)).item() == -1);
}

TEST_CASE("elementwise: log1p and expm1 keep the digits of small numbers") {
  for (const DType t : {DType::f64, DType::f32}) {
    const Tensor x = Tensor::of({1e-20, -1e-20}, {2}, t);
    CHECK(test::different_bits(log1p(x), x) == "");
    CHECK(test::different_bits(expm1(x), x) == "");
  }
}

TEST_CASE("elementwise: limits and NaN") {
  for (const DType t : {DType::f32, DType::f64}) {
    const Tensor x = Tensor::of({-kInf, -1000, 1000, kInf}, {4}, t);
    CHECK(mismatch(tanh(x), Tensor::of({-1, -1, 1, 1}, {4}), 0) == "");
    CHECK(mismatch(sigmoid(x), Tensor::of({0, 0, 1, 1}, {4}), 0) == "");
    CHECK(mismatch(silu(x.slice(0, 1)), Tensor::of({0, 1000, kInf}, {3}), 0) == "");
    CHECK(mismatch(softplus(x), Tensor::of({0, 0, 1000, kInf}, {4}), 0) == "");
    CHECK(mismatch(gelu(x.slice(0, 1)), Tensor::of({0, 1000, kInf}, {3}), 0) == "");
    CHECK(mismatch(gelu(x.slice(0, 1), Gelu::erf), Tensor::of({0, 1000, kInf}, {3}), 0) == "");
    const Tensor nan = Tensor::full({2}, kNan, t), one = Tensor::ones({2}, t);
    for (const Tensor& y : {minimum(nan, one), minimum(one, nan), maximum(nan, one),
                            maximum(one, nan), relu(nan), clamp(nan, 0, 1)})
      CHECK(std::isnan(y.slice(0, 0, 1).item()));
  }
}

TEST_CASE("elementwise: the meta device gives the same shape and dtype") {
  const Tensor a = Tensor::empty({3, 1}, DType::bf16, kMeta),
               b = Tensor::empty({4}, DType::bf16, kMeta);
  for (const Binary& o : kBinary) {
    CHECK(o.op(a, b).shape() == Shape{3, 4});
    CHECK(o.op(a, b).dtype() == DType::bf16);
    CHECK(o.op(a, b).is_meta());
  }
  for (const Unary& u : kUnary) CHECK(u.op(a).shape() == Shape{3, 1});
  CHECK((a < b).dtype() == DType::boolean);
  CHECK(where(a < b, a, b).shape() == Shape{3, 4});
}

TEST_CASE("elementwise: in-place updates") {
  for (const DType t : kFloats) {
    const Tensor x = test::random({3, 5}, 1, t), y = test::random({3, 5}, 2, t);
    const Tensor want = map(x, y, [](double a, double b) { return b + 0.5 * a; });
    for (const Tensor& target : {y.clone(), test::strided(y)}) {
      CHECK(mismatch(target.add_(test::strided(x), 0.5), want, test::tolerance(t)) == "");
      CHECK(mismatch(target.mul_(2), map(want, [](double v) { return 2 * v; }),
                     2 * test::tolerance(t)) == "");
    }
  }
}

TEST_CASE("elementwise: any number of threads gives the same bits") {
  const Tensor a = test::random({300, 257}, 1, DType::f32), b = test::random({257}, 2, DType::f32);
  const test::RestoreThreads restore;
  set_num_threads(1);
  const Tensor one = gelu(a * b), turned = (a.t() + 1).clone();
  set_num_threads(4);
  const Tensor four = gelu(a * b), turned4 = (a.t() + 1).clone();
  CHECK(test::different_bits(one, four) == "");
  CHECK(test::different_bits(turned, turned4) == "");
}

TEST_CASE("elementwise: e4m3 and e5m2 are computed in f32, and so are results") {
  for (const DType t : {DType::e4m3, DType::e5m2}) {
    const Tensor a = test::random({3, 7}, 1).to(t), b = test::random({7}, 2).to(t);
    const Tensor x = a.to(DType::f32), y = b.to(DType::f32);
    const auto same = [](const Tensor& got, const Tensor& want) {
      return test::different_bits(got, want);
    };
    CHECK(same(add(a, b), add(x, y)) == "");
    CHECK(same(mul(a, 0.3), mul(x, 0.3)) == "");
    CHECK(same(sub(1, a), sub(1, x)) == "");
    CHECK(same(div(a, b), div(x, y)) == "");
    CHECK(same(div(a, 3), div(x, 3)) == "");
    CHECK(same(div(3, b), div(3, y)) == "");
    CHECK(same(maximum(a, b), maximum(x, y)) == "");
    CHECK(same(lt(a, b), lt(x, y)) == "");
    CHECK(same(ge(a, 0.5), ge(x, 0.5)) == "");
    CHECK(same(sum(a, {0}), sum(x, {0})) == "");
    CHECK(same(mean(a), mean(x)) == "");
    CHECK(same(sum_to(a, {7}), sum_to(x, {7})) == "");
    CHECK(same(max(a, 1), max(x, 1)) == "");
    CHECK(same(argmin(a, 0), argmin(x, 0)) == "");
  }
}

TEST_CASE("elementwise: errors name the rule and the values") {
  const Tensor f = Tensor::ones({2, 3}), d = Tensor::ones({2, 3}, DType::f64);
  const Tensor i = Tensor::ones({2, 3}, DType::i64), wide = Tensor::ones({2, 4});
  const Tensor flag = Tensor::ones({2}, DType::boolean);
  CHECK(error_of([&] { f + d; }) == "add: both operands must have one dtype, got f32 and f64");
  CHECK(error_of([&] { f - wide; }) == "sub: shapes must broadcast, got [2, 3] and [2, 4]");
  CHECK(error_of([&] {
          mul(f, Tensor::empty({2, 3}, DType::f32, kMeta));
        }) == "mul: both operands must be on one device, got cpu and meta");
  CHECK(error_of([&] { add(flag, flag); }) ==
        "add: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool");
  CHECK(error_of([&] { exp(flag.to(DType::e5m2)); }) ==
        "exp: dtype must be one of f32, f64, bf16, f16, got e5m2");
  CHECK(error_of([&] { div(i, i); }) == "div: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { div(i, 2); }) == "div: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { div(2, i); }) == "div: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { pow(i, i); }) == "pow: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { pow(i, 2); }) == "pow: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { mul(i, 0.5); }) ==
        "mul: the number must be whole for a tensor of i64, got 0.5");
  CHECK(error_of([&] { neg(flag); }) ==
        "neg: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool");
  CHECK(error_of([&] { exp(i); }) == "exp: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { sin(i); }) == "sin: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { cos(i); }) == "cos: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { log1p(i); }) == "log1p: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { expm1(i); }) == "expm1: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { erf(i); }) == "erf: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { elu(i); }) == "elu: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { leaky_relu(i); }) ==
        "leaky_relu: dtype must be one of f32, f64, bf16, f16, got i64");
  const std::string numbers = ": dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool";
  CHECK(error_of([&] { floor(flag); }) == "floor" + numbers);
  CHECK(error_of([&] { ceil(flag); }) == "ceil" + numbers);
  CHECK(error_of([&] { round(flag); }) == "round" + numbers);
  CHECK(error_of([&] { sign(flag); }) == "sign" + numbers);
  CHECK(error_of([&] { gelu(i); }) == "gelu: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { clamp(f, 1, 0); }) == "clamp: low must be at most high, got 1 and 0");
  CHECK(error_of([&] { clamp(i, 0.5, 2); }) ==
        "clamp: the number must be whole for a tensor of i64, got 0.5");
  CHECK(error_of([&] { where(f, f, f); }) == "where: condition must be bool, got f32");
  CHECK(error_of([&] { where(flag, f, f); }) == "where: shapes must broadcast, got [2] and [2, 3]");
  CHECK(error_of([&] { where(flag.to(kMeta), f, f); }) ==
        "where: condition must be on device cpu, got meta");
  Tensor leaf = Tensor::ones({2});
  leaf.set_requires_grad();
  Tape tape;
  CHECK(error_of([&] { (leaf * 2).add_(leaf); }) ==
        "add_: cannot change a tensor that is part of a recording; use the out-of-place op, or a "
        "NoGradGuard, got shape [2]");
}

}  // namespace weft::elementwise_test
