#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/scaled_activation.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::scaled_activation_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

enum class Kind { swiglu, tanh, erf };
constexpr Kind kKinds[] = {Kind::swiglu, Kind::tanh, Kind::erf};

std::int64_t inputs_of(Kind kind, std::int64_t width) {
  return kind == Kind::swiglu ? 2 * width : width;
}

Tensor scaled(Kind kind, const Tensor& h, const Tensor& p) {
  if (kind == Kind::swiglu) return scaled_swiglu(h, p);
  return scaled_gelu(h, p, kind == Kind::tanh ? Gelu::tanh : Gelu::erf);
}

// Composed of separate ops.
Tensor by_parts(Kind kind, const Tensor& h, const Tensor& p) {
  const std::int64_t f = h.dim(1) / 2;
  const Tensor act = kind == Kind::swiglu ? mul(silu(h.narrow(1, 0, f)), h.narrow(1, f, f))
                                          : gelu(h, kind == Kind::tanh ? Gelu::tanh : Gelu::erf);
  return mul(act, p.unsqueeze(1));
}

template <class F>
TensorList run(F f, const Tensor& h0, const Tensor& p0, const Tensor& dy) {
  Tensor h = h0.detach(), p = p0.detach();
  h.set_requires_grad();
  p.set_requires_grad();
  Tape tape;
  const Tensor y = f(h, p);
  TensorList out = tape.gradients(y, {h, p}, dy);
  out.push_back(y.detach());
  return out;
}

}  // namespace

TEST_CASE(
    "scaled_swiglu, scaled_gelu: the activation times the row's scale in every dtype and width") {
  for (const Kind kind : kKinds)
    for (const std::int64_t width : {0, 1, 5, 256, 300, 1030})
      for (const std::int64_t rows : {0, 1, 7})
        for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
          CAPTURE(static_cast<int>(kind));
          CAPTURE(width);
          CAPTURE(std::string(name(t)));
          const DType wide = t == DType::f64 ? DType::f64 : DType::f32;
          const Tensor h = random({rows, inputs_of(kind, width)}, 1, t);
          const Tensor p = test::random_in({rows}, 0, 1, 2, wide), dy = random({rows, width}, 3, t);
          const TensorList got = run(
              [kind](const Tensor& a, const Tensor& b) { return scaled(kind, a, b); }, h, p, dy);
          const TensorList want =
              run([kind](const Tensor& a, const Tensor& b) { return by_parts(kind, a, b); },
                  h.to(DType::f64), p.to(DType::f64), dy.to(DType::f64));
          // dscale is a sum over the whole row, in f32 for any dtype of the rows.
          CHECK(mismatch(got[0], want[0], test::tolerance(t)) == "");
          CHECK(mismatch(got[1], want[1], 2 * test::tolerance(wide)) == "");
          CHECK(mismatch(got[2], want[2], test::tolerance(t)) == "");
          CHECK(got[1].dtype() == wide);
          CHECK(got[2].dtype() == t);
        }
}

TEST_CASE("scaled_swiglu, scaled_gelu: gradcheck with strided inputs and a scale of 0") {
  for (const Kind kind : kKinds) {
    const auto op = [kind](const TensorList& in) { return scaled(kind, in[0], in[1]); };
    const Tensor h = random({4, inputs_of(kind, 3)}, 1),
                 p = Tensor::of({0.5, 0, -1, 2}, {4}, DType::f64);
    CHECK(gradcheck(op, {h, p}) == "");
    CHECK(gradcheck(op, {test::strided(h), test::strided(p)}) == "");
    const auto twice = [kind](const TensorList& in) {
      return scaled(kind, in[0], in[0].select(1, 0));
    };
    CHECK(gradcheck(twice, {h}) == "");
  }
  CHECK(gradcheck([](const TensorList& in) { return scaled_swiglu(in[0], in[1]); },
                  {random({2, 4}), random({2}, 2)}) == "");
  CHECK(gradcheck([](const TensorList& in) { return scaled_gelu(in[0], in[1]); },
                  {random({2, 4}), random({2}, 2)}) == "");
}

TEST_CASE("scaled_activation: a padding row gives 0 and gradients of 0") {
  const Tensor h = random({1, 6}, 1, DType::f32), none = Tensor::zeros({1});
  const TensorList got = run([](const Tensor& a, const Tensor& b) { return scaled_swiglu(a, b); },
                             h, none, Tensor::zeros({1, 3}));
  CHECK(different_bits(got[2].abs(), Tensor::zeros({1, 3})) == "");
  CHECK(different_bits(got[0].abs(), Tensor::zeros({1, 6})) == "");
  CHECK(different_bits(got[1].abs(), Tensor::zeros({1})) == "");
}

TEST_CASE("scaled_activation: the number of threads changes no bit and meta gives the same shape") {
  const test::RestoreThreads restore;
  const Tensor h = random({61, 1034}, 3, DType::f32), p = random({61}, 4, DType::f32);
  set_num_threads(1);
  const Tensor one = scaled_swiglu(h, p);
  set_num_threads(3);
  CHECK(different_bits(scaled_swiglu(h, p), one) == "");
  const Tensor meta = Tensor::empty({2, 6}, DType::bf16, kMeta);
  const Tensor mp = Tensor::empty({2}, DType::f32, kMeta);
  CHECK(scaled_swiglu(meta, mp).shape() == Shape{2, 3});
  CHECK(scaled_gelu(meta, mp).shape() == Shape{2, 6});
  CHECK(scaled_gelu(meta, mp).dtype() == DType::bf16);
}

TEST_CASE("scaled_activation: errors name the rule") {
  const Tensor h = random({2, 4}, 1, DType::f32), p = random({2}, 2, DType::f32);
  CHECK(error_of([&] { scaled_swiglu({}, p); }) ==
        "scaled_swiglu: h must be a tensor, got a null handle");
  CHECK(error_of([&] { scaled_gelu(h, {}); }) ==
        "scaled_gelu: scale must be a tensor, got a null handle");
  CHECK(error_of([&] { scaled_gelu(h.to(DType::i32), p); }) ==
        "scaled_gelu: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(error_of([&] { scaled_swiglu(h.flatten(), p); }) ==
        "scaled_swiglu: h must have shape (rows, width), got [8]");
  CHECK(error_of([&] {
          scaled_swiglu(random({2, 3}, 1, DType::f32), p);
        }) == "scaled_swiglu: h must have rows [gate | up] of even length, got 3");
  CHECK(error_of([&] { scaled_swiglu(h, random({3}, 1, DType::f32)); }) ==
        "scaled_swiglu: scale must have shape [2], got [3]");
  CHECK(error_of([&] { scaled_swiglu(h.to(DType::bf16), p.to(DType::bf16)); }) ==
        "scaled_swiglu: scale must be f32 on cpu, got bf16 on cpu");
  CHECK(error_of([&] { scaled_gelu(h.to(DType::f64), p); }) ==
        "scaled_gelu: scale must be f64 on cpu, got f32 on cpu");
}

}  // namespace weft::scaled_activation_test
