#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/swiglu.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::swiglu_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

const Shape kShapes[] = {{1, 1}, {3, 5}, {2, 3, 7}, {4, 1025}, {0, 4}, {4, 0}, {6}};

Tensor packed(const Tensor& gate, const Tensor& up) { return cat({gate, up}, -1); }

}  // namespace

TEST_CASE("swiglu: both forms are silu(gate) * up") {
  for (const Shape& s : kShapes) {
    CAPTURE(to_string(s));
    const Tensor gate = random(s, 1), up = random(s, 2), want = mul(silu(gate), up);
    CHECK(mismatch(swiglu(gate, up), want, 1e-12) == "");
    CHECK(mismatch(swiglu(packed(gate, up)), want, 1e-12) == "");
    CHECK(mismatch(swiglu(test::strided(gate), test::strided(up)), want, 1e-12) == "");
  }
}

TEST_CASE("swiglu: f32 and bf16 agree with f64 in forward and backward") {
  for (const Shape& s : kShapes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(to_string(s));
      CAPTURE(std::string(name(t)));
      const auto run = [](const Tensor& g, const Tensor& u, const Tensor& dy) {
        Tensor gate = g.detach(), up = u.detach();
        gate.set_requires_grad();
        up.set_requires_grad();
        Tape tape;
        const Tensor y = swiglu(gate, up);
        TensorList out = tape.gradients(y, {gate, up}, dy);
        out.push_back(y);
        return out;
      };
      const Tensor g = random(s, 1, t), u = random(s, 2, t), dy = random(s, 3, t);
      const TensorList got = run(g, u, dy);
      const TensorList want = run(g.to(DType::f64), u.to(DType::f64), dy.to(DType::f64));
      for (int i = 0; i < 3; ++i) {
        CHECK(got[i].dtype() == t);
        CHECK(mismatch(got[i], want[i], test::tolerance(t)) == "");
      }
    }
}

TEST_CASE("swiglu: gradients of strided and repeated inputs match finite differences") {
  const auto two = [](const TensorList& in) { return swiglu(in[0], in[1]); };
  const auto one = [](const TensorList& in) { return swiglu(in[0]); };
  for (const Shape& s : {Shape{1, 1}, Shape{3, 5}, Shape{2, 3, 4}, Shape{0, 4}, Shape{4, 0}}) {
    CAPTURE(to_string(s));
    const Tensor gate = random(s, 1), up = random(s, 2);
    CHECK(gradcheck(two, {gate, up}) == "");
    CHECK(gradcheck(two, {test::strided(gate), test::strided(up)}) == "");
    CHECK(gradcheck(one, {packed(gate, up)}) == "");
    CHECK(gradcheck(one, {test::strided(packed(gate, up))}) == "");
    CHECK(gradcheck([](const TensorList& in) { return swiglu(in[0], in[0]); }, {gate}) == "");
  }
}

TEST_CASE("swiglu: the number of threads changes no bit and meta gives the same shape") {
  const test::RestoreThreads restore;
  const Tensor x = random({61, 1034}, 3, DType::f32);
  set_num_threads(1);
  const Tensor one = swiglu(x);
  set_num_threads(3);
  CHECK(different_bits(swiglu(x), one) == "");
  const Tensor meta = Tensor::empty({2, 6}, DType::bf16, kMeta);
  CHECK(swiglu(meta).shape() == Shape{2, 3});
  CHECK(swiglu(meta, meta).shape() == Shape{2, 6});
  CHECK(swiglu(meta).dtype() == DType::bf16);
}

TEST_CASE("swiglu: errors name the rule") {
  const Tensor x = random({2, 3});
  CHECK(error_of([&] { swiglu(x); }) ==
        "swiglu: x must have a last axis of even length [gate | up], got shape [2, 3]");
  CHECK(error_of([&] { swiglu(Tensor::ones({})); }) ==
        "swiglu: x must have a last axis of even length [gate | up], got shape []");
  CHECK(error_of([&] { swiglu(Tensor::ones({}), Tensor::ones({})); }) ==
        "swiglu: gate must have at least one axis, got a scalar");
  CHECK(error_of([&] {
          swiglu(x, random({2, 4}));
        }) == "swiglu: up must have shape [2, 3] like gate, got [2, 4]");
  CHECK(error_of([&] { swiglu(x, x.to(DType::f32)); }) ==
        "swiglu: up must have dtype f64 like gate, got f32");
  CHECK(error_of([&] {
          swiglu(x, Tensor::empty({2, 3}, DType::f64, kMeta));
        }) == "swiglu: up must be on device cpu like gate, got meta");
  CHECK(error_of([&] { swiglu(x.to(DType::i32)); }) ==
        "swiglu: dtype must be one of f32, f64, bf16, f16, got i32");
  Tensor leaf = random({2, 4});
  leaf.set_requires_grad();
  Tape outer, inner;
  const Tensor y = swiglu(leaf);
  CHECK(error_of([&] {
          inner.gradients(y, {leaf}, Tensor::ones({2, 2}, DType::f64));
        }).starts_with("swiglu: its backward is a fused kernel"));
}

}  // namespace weft::swiglu_test
