#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/core/kernels/elementwise.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::elementwise_test {
namespace {

using test::Agreement;
using test::different_bits;
using test::disagreement;
using test::kGpu;
using test::kNumbers;
using test::mismatch;
using test::one;
using test::Op;
using test::random;
using test::random_in;

const Shape kElementwiseShapes[] = {{}, {1, 1}, {3, 5}, {2, 3, 37}, {4, 260}, {0, 4}, {4, 0}};

struct Named {
  const char* name;
  Op op;
};

template <class F>
Op two(F f) {
  return [f](const TensorList& in) { return TensorList{f(in[0], in[1])}; };
}

}  // namespace

TEST_CASE("elementwise: every unary op and its gradient") {
  const Named any[] = {{"neg", one([](const Tensor& x) { return -x; })},
                       {"exp", one([](const Tensor& x) { return x.exp(); })},
                       {"abs", one([](const Tensor& x) { return x.abs(); })},
                       {"tanh", one([](const Tensor& x) { return x.tanh(); })},
                       {"sigmoid", one([](const Tensor& x) { return x.sigmoid(); })},
                       {"relu", one([](const Tensor& x) { return x.relu(); })},
                       {"gelu", one([](const Tensor& x) { return gelu(x); })},
                       {"gelu_erf", one([](const Tensor& x) { return gelu(x, Gelu::erf); })},
                       {"silu", one([](const Tensor& x) { return silu(x); })},
                       {"softplus", one([](const Tensor& x) { return softplus(x); })},
                       {"square", one([](const Tensor& x) { return x.square(); })},
                       {"sin", one([](const Tensor& x) { return sin(x); })},
                       {"cos", one([](const Tensor& x) { return cos(x); })},
                       {"expm1", one([](const Tensor& x) { return expm1(x); })},
                       {"erf", one([](const Tensor& x) { return erf(x); })},
                       {"floor", one([](const Tensor& x) { return x * floor(x); })},
                       {"ceil", one([](const Tensor& x) { return x * ceil(x); })},
                       {"round", one([](const Tensor& x) { return x * round(x); })},
                       {"sign", one([](const Tensor& x) { return x * sign(x); })},
                       {"leaky_relu", one([](const Tensor& x) { return leaky_relu(x); })},
                       {"elu", one([](const Tensor& x) { return elu(x); })},
                       {"clamp", one([](const Tensor& x) { return x.clamp(-0.5, 0.75); })}};
  const Named positive[] = {{"log", one([](const Tensor& x) { return x.log(); })},
                            {"sqrt", one([](const Tensor& x) { return x.sqrt(); })},
                            {"rsqrt", one([](const Tensor& x) { return x.rsqrt(); })},
                            {"log1p", one([](const Tensor& x) { return log1p(x); })},
                            {"pow", one([](const Tensor& x) { return x.pow(2.5); })}};
  for (const Shape& s : kElementwiseShapes) {
    CAPTURE(to_string(s));
    for (const auto& [name, op] : any) {
      CAPTURE(std::string(name));
      CHECK(disagreement(op, {random(s)}) == "");
      CHECK(disagreement(op, {test::strided(random(s))}) == "");
    }
    for (const auto& [name, op] : positive) {
      CAPTURE(std::string(name));
      CHECK(disagreement(op, {random_in(s, 0.5, 3)}) == "");
    }
  }
}

TEST_CASE(
    "elementwise: every binary op and its gradient for broadcast, strided and repeated inputs") {
  const Named ops[] = {
      {"add", two([](const Tensor& a, const Tensor& b) { return a + b; })},
      {"sub", two([](const Tensor& a, const Tensor& b) { return a - b; })},
      {"mul", two([](const Tensor& a, const Tensor& b) { return a * b; })},
      {"div", two([](const Tensor& a, const Tensor& b) { return a / b; })},
      {"pow", two([](const Tensor& a, const Tensor& b) { return pow(a, b); })},
      {"minimum", two([](const Tensor& a, const Tensor& b) { return minimum(a, b); })},
      {"maximum", two([](const Tensor& a, const Tensor& b) { return maximum(a, b); })}};
  for (const auto& [name, op] : ops) {
    CAPTURE(std::string(name));
    for (const Shape& s : {Shape{1}, Shape{3, 5}, Shape{4, 260}, Shape{0, 4}}) {
      const Tensor a = random_in(s, 0.5, 2, 1), b = random_in(s, 0.5, 2, 2);
      CHECK(disagreement(op, {a, b}, {.tolerance = 2}) == "");
      CHECK(disagreement(op, {test::strided(a), b}, {.tolerance = 2}) == "");
    }
    const Tensor row = random_in({5}, 0.5, 2, 1), column = random_in({3, 1}, 0.5, 2, 2);
    CHECK(disagreement(op, {row, column}, {.tolerance = 2, .gradients = false}) == "");
    const Op twice = [op](const TensorList& in) { return op({in[0], in[0]}); };
    CHECK(disagreement(twice, {row}, {.tolerance = 2}) == "");
  }
}

TEST_CASE("elementwise: floor_divide and remainder have the CPU's bits in every dtype") {
  for (const DType t : kNumbers) {
    CAPTURE(std::string(name(t)));
    const double low = t == DType::u8 ? 0 : -9;
    const Tensor a = Tensor::arange(low, 10, 1, t).unsqueeze(1);
    const Tensor b = cat({Tensor::arange(low, 0, 1, t), Tensor::arange(1, 10, 1, t)});
    test::for_each_order([&] {
      CHECK(different_bits(floor_divide(a.to(kGpu), b.to(kGpu)).to(kCpu), floor_divide(a, b)) ==
            "");
      CHECK(different_bits(remainder(a.to(kGpu), b.to(kGpu)).to(kCpu), remainder(a, b)) == "");
    });
  }
  for (const DType t : {DType::i32, DType::i64}) {
    const Tensor least = Tensor::full({2}, t == DType::i32 ? -0x1p31 : -0x1p63, t).to(kGpu);
    const Tensor by = Tensor::of({0, -1}, t), on_gpu = by.to(kGpu);
    CHECK(different_bits(floor_divide(least, on_gpu).to(kCpu), floor_divide(least.to(kCpu), by)) ==
          "");
    CHECK(different_bits(remainder(least, on_gpu).to(kCpu), remainder(least.to(kCpu), by)) == "");
  }
  const Op rest = two([](const Tensor& x, const Tensor& y) { return remainder(x, y); });
  CHECK(disagreement(rest, {random_in({3, 5}, 1, 4), random_in({3, 5}, 0.4, 0.6, 2)},
                     {.gradients = true}) == "");
}

TEST_CASE("elementwise: numbers as either operand in every dtype") {
  for (const DType t : kNumbers) {
    CAPTURE(std::string(name(t)));
    const Tensor x = test::random_in({3, 7}, 1, 9).to(t), g = x.to(kGpu);
    test::for_each_order([&] {
      CHECK(different_bits((g + 3.0).to(kCpu), x + 3.0) == "");
      CHECK(different_bits((2.0 - g).to(kCpu), 2.0 - x) == "");
      CHECK(different_bits((g * 3.0).to(kCpu), x * 3.0) == "");
      CHECK(different_bits(minimum(g, 4.0).to(kCpu), minimum(x, 4.0)) == "");
      CHECK(different_bits(maximum(g, 4.0).to(kCpu), maximum(x, 4.0)) == "");
      CHECK(different_bits(clamp_min(g, 4.0).to(kCpu), clamp_min(x, 4.0)) == "");
      CHECK(different_bits(floor_divide(g, 4.0).to(kCpu), floor_divide(x, 4.0)) == "");
      CHECK(different_bits(remainder(g, 4.0).to(kCpu), remainder(x, 4.0)) == "");
      if (is_floating(t)) {
        CHECK(test::mismatch((2.0 / g).to(kCpu), 2.0 / x, 1e-6) == "");
        CHECK(test::mismatch((g / 3.0).to(kCpu), x / 3.0, 1e-6) == "");
      }
    });
  }
}

TEST_CASE("elementwise: rounding and signs of integers") {
  for (const DType t : {DType::i32, DType::i64, DType::u8}) {
    CAPTURE(std::string(name(t)));
    const Tensor x = random({4, 9}, 1, t), g = x.to(kGpu);
    test::for_each_order([&] {
      CHECK(different_bits(floor(g).to(kCpu), x) == "");
      CHECK(different_bits(ceil(g).to(kCpu), x) == "");
      CHECK(different_bits(round(g.transpose(0, 1)).to(kCpu), x.transpose(0, 1)) == "");
      CHECK(different_bits(sign(g).to(kCpu), sign(x)) == "");
    });
  }
}

TEST_CASE("elementwise: comparisons and where") {
  for (const DType t : kNumbers) {
    CAPTURE(std::string(name(t)));
    const Tensor a = random({4, 9}, 1, DType::i32).to(t), b = random({9}, 2, DType::i32).to(t);
    const Tensor x = random({4, 9}, 3, DType::i32).to(t);
    const Tensor ga = a.to(kGpu), gb = b.to(kGpu), gx = x.to(kGpu);
    test::for_each_order([&] {
      CHECK(different_bits(eq(ga, gb).to(kCpu), eq(a, b)) == "");
      CHECK(different_bits(ne(ga, gb).to(kCpu), ne(a, b)) == "");
      CHECK(different_bits(lt(ga, gb).to(kCpu), lt(a, b)) == "");
      CHECK(different_bits(le(ga, gb).to(kCpu), le(a, b)) == "");
      CHECK(different_bits(gt(ga, gb).to(kCpu), gt(a, b)) == "");
      CHECK(different_bits(ge(ga, 4).to(kCpu), ge(a, 4)) == "");
      CHECK(different_bits(where(lt(ga, gb), ga, gb).to(kCpu), where(lt(a, b), a, b)) == "");
      CHECK(different_bits(le(ga, gx).to(kCpu), le(a, x)) == "");
    });
  }
}

TEST_CASE("elementwise: the slope of tanh GELU is 0 or 1 far from 0, and NaN of NaN") {
  for (const DType t : {DType::f32, DType::bf16, DType::f64}) {
    const double far = t == DType::f64 ? 1e200 : 3e38;
    const Tensor x = Tensor::of({-far, -1e20, -1e4, 1e4, 1e20, far, NAN}, {7}, DType::f64).to(t),
                 at = x.to(kGpu).detach().set_requires_grad();
    Tape tape;
    const Tensor slope = tape.gradients(gelu(at), {at}, Tensor::ones({7}, t).to(kGpu))[0];
    CHECK(mismatch(slope.to(kCpu).narrow(0, 0, 6), Tensor::of({0, 0, 0, 1, 1, 1}, {6}, t), 0) ==
          "");
    CHECK(std::isnan(slope.narrow(0, 6, 1).item()));
  }
}

TEST_CASE("elementwise: updates in place") {
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    CAPTURE(std::string(name(t)));
    const Tensor x = random({5, 33}, 1, t), y = random({5, 33}, 2, t);
    test::for_each_order([&] {
      const Tensor a = y.clone(), b = y.to(kGpu);
      a.add_(x, 0.5).mul_(1.5);
      b.add_(x.to(kGpu), 0.5).mul_(1.5);
      CHECK(test::mismatch(b.to(kCpu), a, test::tolerance(t)) == "");
    });
  }
}

TEST_CASE("elementwise: every comparison with NaN on dense and strided tensors") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    CAPTURE(std::string(name(t)));
    const Tensor a = Tensor::of({1, 2, 3, nan, 2, nan}, {2, 3}, t);
    const Tensor b = Tensor::of({2, 2, 2, 2, nan, nan}, {2, 3}, t);
    const Tensor ga = a.to(kGpu), gb = b.to(kGpu);
    using Compare = Tensor (*)(const Tensor&, const Tensor&);
    for (const Compare f :
         {Compare(eq), Compare(ne), Compare(lt), Compare(le), Compare(gt), Compare(ge)})
      test::for_each_order([&] {
        CHECK(different_bits(f(ga, gb).to(kCpu), f(a, b)) == "");
        CHECK(different_bits(f(ga.transpose(0, 1), gb.transpose(0, 1)).to(kCpu),
                             f(a, b).transpose(0, 1)) == "");
        CHECK(different_bits(f(ga, Tensor::full({}, 2, t, kGpu).expand({2, 3})).to(kCpu),
                             f(a, Tensor::full({2, 3}, 2, t))) == "");
      });
    test::for_each_order([&] {
      CHECK(different_bits(ne(ga, 2).to(kCpu), ne(a, 2)) == "");
      CHECK(different_bits(le(ga, 2).to(kCpu), le(a, 2)) == "");
    });
  }
}

TEST_CASE("elementwise: scale_by adds to what its result holds") {
  for (const DType t : test::kFloating)
    for (const std::int64_t n : {64, 37}) {
      const Tensor x = random({n}, 1, t), by = random({1}, 2, t), sum = random({n}, 3, t);
      const Tensor on_gpu = sum.to(kGpu);
      cpu::scale_by(x, by, true, sum);
      cuda::scale_by(x.to(kGpu), by.to(kGpu), true, on_gpu);
      CHECK(test::mismatch(on_gpu.to(kCpu), sum, is_half(t) ? 1e-2 : 1e-6) == "");
    }
}

TEST_CASE("elementwise: add_scaled of 16 bits to f32") {
  for (const DType t : {DType::bf16, DType::f16})
    for (const std::int64_t n : {64, 37}) {
      const Tensor x = random({n}, 1, t), sum = random({n}, 2, DType::f32);
      const Tensor on_gpu = sum.to(kGpu);
      cuda::add_scaled(x.to(kGpu), 1.5, on_gpu);
      CHECK(test::mismatch(on_gpu.to(kCpu), add(sum, mul(x.to(DType::f32), 1.5)), 1e-6) == "");
    }
}

TEST_CASE("elementwise: integers compare exactly with any number") {
  const std::int64_t big = std::int64_t{1} << 53;
  const std::int64_t many[] = {INT64_MIN, -big - 1, -big, -1, 0, 1, 2, big, big + 1, INT64_MAX};
  for (const Tensor& x :
       {Tensor::from<std::int64_t>(many, {10}), Tensor::of({0, 1, 255}, {3}, DType::u8),
        Tensor::of({0, 1}, {2}, DType::boolean), random({9}, 1, DType::i32)}) {
    const Tensor g = x.to(kGpu);
    for (const double v : {-HUGE_VAL, -1e300, -0x1p63, -1.5, 0.5, 1.0, 255.0, 0x1p53, 0x1p53 + 2,
                           0x1p63, HUGE_VAL, std::nan("")}) {
      CAPTURE(v);
      CHECK(different_bits(eq(g, v).to(kCpu), eq(x, v)) == "");
      CHECK(different_bits(ne(g, v).to(kCpu), ne(x, v)) == "");
      CHECK(different_bits(lt(g, v).to(kCpu), lt(x, v)) == "");
      CHECK(different_bits(le(g, v).to(kCpu), le(x, v)) == "");
      CHECK(different_bits(gt(g, v).to(kCpu), gt(x, v)) == "");
      CHECK(different_bits(ge(g, v).to(kCpu), ge(x, v)) == "");
    }
  }
}

TEST_CASE("elementwise: the operand that is not selected gets 0 for any cotangent") {
  const Op ops[] = {
      two([](const Tensor& a, const Tensor& b) { return log(maximum(a, b)); }),
      two([](const Tensor& a, const Tensor& b) { return log(neg(minimum(a, b))); }),
      one([](const Tensor& a) { return sqrt(maximum(a, 0)); }),
      one([](const Tensor& a) { return sqrt(abs(a)); }),
      one([](const Tensor& a) { return sqrt(pow(a, 0) - 1); }),
  };
  for (const Op& op : ops)
    for (const double v : {-2.0, 0.0, 3.0}) {
      const Tensor x = Tensor::full({5}, v, DType::f64);
      CHECK(disagreement(op, {x, Tensor::zeros({5}, DType::f64)}) == "");
    }
}

}  // namespace weft::elementwise_test
