#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/rms_norm.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::rms_norm_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

// one row, odd sizes, three axes, wider than a block of lanes, no rows, more rows than chunks
const Shape kShapes[] = {{1, 1}, {3, 5}, {2, 3, 7}, {4, 1025}, {0, 4}, {7}, {1100, 3}};

Tensor by_definition(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor y = mul(x, rsqrt(add(mean(square(x), {-1}, true), eps)));
  return weight.defined() ? mul(y, weight) : y;
}

Tensor to(const Tensor& t, DType dtype) { return t.defined() ? t.to(dtype) : t; }

// The gradients of x, residual and weight, then y and sum.
TensorList run(const TensorList& in, const Tensor& dy, const Tensor& dsum,
               bool zero_centered = false) {
  TensorList leaves;
  for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
  Tape tape;
  const RmsNormResidual r = rms_norm_residual(leaves[0], leaves[1], leaves[2], 1e-6, zero_centered);
  const Tensor loss = add(mul(r.y, dy), mul(r.sum, dsum)).sum();
  TensorList out = tape.gradients(loss, leaves);
  out.push_back(r.y);
  out.push_back(r.sum);
  return out;
}

}  // namespace

TEST_CASE("rms_norm: agrees with its definition for every set of operands") {
  for (const Shape& s : kShapes) {
    CAPTURE(to_string(s));
    const Tensor x = random(s, 1), res = random(s, 2), w = random({s.back()}, 3);
    CHECK(mismatch(rms_norm(x), by_definition(x, {}, 1e-6), 1e-9) == "");
    CHECK(mismatch(rms_norm(test::strided(x), test::strided(w), 0.1), by_definition(x, w, 0.1),
                   1e-9) == "");
    const RmsNormResidual r = rms_norm_residual(x, res, w);
    CHECK(mismatch(r.sum, add(x, res), 0) == "");
    CHECK(mismatch(r.y, by_definition(add(x, res), w, 1e-6), 1e-9) == "");
    const Tensor gain = add(w, 1);
    CHECK(mismatch(rms_norm(x, test::strided(w), 0.1, true), by_definition(x, gain, 0.1), 1e-9) ==
          "");
    CHECK(mismatch(rms_norm_residual(x, res, w, 1e-6, true).y,
                   by_definition(add(x, res), gain, 1e-6), 1e-9) == "");
    CHECK(different_bits(rms_norm(x, {}, 1e-6, true), rms_norm(x)) == "");
  }
}

TEST_CASE("rms_norm: f32 and bf16 agree with f64 in forward and backward") {
  for (const Shape& s : kShapes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(to_string(s));
      CAPTURE(std::string(name(t)));
      const Shape row{s.back()};
      // Halves of small integers: x + residual is exact in bf16, so both norms see the same sum.
      const auto exact = [&](std::uint64_t seed) {
        return div(test::random(s, seed, DType::i64).to(DType::f64), 2).to(t);
      };
      const TensorList in{exact(1), exact(2), random(row, 3, t)};
      const Tensor dy = random(s, 5, t), dsum = random(s, 6, t);
      const TensorList wide{to(in[0], DType::f64), to(in[1], DType::f64), to(in[2], DType::f64)};
      for (const bool zero_centered : {false, true}) {
        CAPTURE(zero_centered);
        const TensorList got = run(in, dy, dsum, zero_centered);
        const TensorList want = run(wide, dy.to(DType::f64), dsum.to(DType::f64), zero_centered);
        // dweight sums over all rows, so the bound is larger.
        for (int i = 0; i < 5; ++i) {
          CAPTURE(i);
          CHECK(got[i].dtype() == t);
          CHECK(mismatch(got[i], want[i], 2 * test::tolerance(t)) == "");
        }
      }
    }
}

TEST_CASE("rms_norm: zero_centered has the bits of a gain of 1 + weight in f32 and f64") {
  for (const Shape& s : kShapes)
    for (const DType t : {DType::f32, DType::f64}) {
      CAPTURE(to_string(s));
      const TensorList in{random(s, 1, t), random(s, 2, t), random({s.back()}, 3, t)};
      const Tensor dy = random(s, 5, t), dsum = random(s, 6, t);
      const TensorList got = run(in, dy, dsum, true);
      const TensorList want = run({in[0], in[1], add(in[2], 1)}, dy, dsum);
      for (int i = 0; i < 5; ++i) CHECK(different_bits(got[i], want[i]) == "");
    }
}

// 1 + 0.003 is 1 in bf16. From sums of halves and small weights, forward and backward give what f64
// gives, rounded once.
TEST_CASE("rms_norm: a small zero-centred weight counts in 16 bits") {
  const Shape s{5, 37};
  for (const DType t : {DType::bf16, DType::f16}) {
    CAPTURE(std::string(name(t)));
    const auto halves = [&](std::uint64_t seed) {
      return div(random(s, seed, DType::i64).to(DType::f64), 2).to(t);
    };
    const TensorList in{halves(1), halves(2), Tensor::full({37}, 0.003, t)};
    const TensorList wide{to(in[0], DType::f64), to(in[1], DType::f64), to(in[2], DType::f64)};
    const Tensor dy = random(s, 5, t), dsum = Tensor::zeros(s, t);
    const TensorList got = run(in, dy, dsum, true);
    const TensorList want = run(wide, dy.to(DType::f64), dsum.to(DType::f64), true);
    for (int i = 0; i < 5; ++i) {
      CAPTURE(i);
      CHECK(different_bits(got[i], want[i].to(t)) == "");
    }
    CHECK(different_bits(rms_norm(in[0], in[2], 1e-6, true),
                         rms_norm(wide[0], wide[2], 1e-6, true).to(t)) == "");
    CHECK(mismatch(got[3], rms_norm(got[4]), 0) != "");
  }
}

TEST_CASE("rms_norm: a weight of -0 keeps its sign without zero_centered") {
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Tensor y = rms_norm(Tensor::full({2, 19}, 1, t), Tensor::full({19}, -0.0, t));
    CHECK(different_bits(y, Tensor::full({2, 19}, -0.0, t)) == "");
  }
}

TEST_CASE("rms_norm: gradients of strided, repeated and absent inputs match finite differences") {
  const auto plain = [](const TensorList& in) { return rms_norm(in[0], in[1]); };
  const auto bare = [](const TensorList& in) { return rms_norm(in[0]); };
  const auto centred = [](const TensorList& in) { return rms_norm(in[0], in[1], 1e-6, true); };
  for (const Shape& s : {Shape{1, 1}, Shape{3, 5}, Shape{2, 3, 7}, Shape{0, 4}, Shape{35, 2}}) {
    CAPTURE(to_string(s));
    const Tensor x = random(s, 1), w = random({s.back()}, 2);
    CHECK(gradcheck(plain, {x, w}) == "");
    CHECK(gradcheck(plain, {test::strided(x), test::strided(w)}) == "");
    CHECK(gradcheck(bare, {x}) == "");
    CHECK(gradcheck(centred, {x, test::strided(w)}) == "");
  }
  const auto same = [](const TensorList& in) { return rms_norm(in[0], in[0]); };
  CHECK(gradcheck(same, {random({5}, 1)}) == "");
}

TEST_CASE("rms_norm_residual: gradients through either output or both") {
  const Shape s{3, 5}, row{5};
  const TensorList in{random(s, 1), random(s, 2), random(row, 3)};
  const auto fused = [](const TensorList& v) { return rms_norm_residual(v[0], v[1], v[2]); };
  CHECK(gradcheck([&](const TensorList& v) { return fused(v).y; }, in) == "");
  CHECK(gradcheck([](const TensorList& v) { return rms_norm_residual(v[0], v[1]).sum; },
                  {in[0], in[1]}) == "");
  CHECK(gradcheck(
            [&](const TensorList& v) {
              const RmsNormResidual r = fused(v);
              return mul(r.y, exp(r.sum));
            },
            in) == "");
  CHECK(gradcheck(
            [](const TensorList& v) {
              const RmsNormResidual r = rms_norm_residual(v[0], v[1], v[2], 0.1, true);
              return mul(r.y, exp(r.sum));
            },
            in) == "");
  // The same tensor as x and residual, and a strided cotangent of the sum.
  CHECK(gradcheck(
            [](const TensorList& v) {
              const RmsNormResidual r = rms_norm_residual(v[0], v[0]);
              return add(r.y.t(), r.sum.t());
            },
            {in[0]}) == "");
}

TEST_CASE("rms_norm: the number of threads changes no bit and meta gives the same shapes") {
  const test::RestoreThreads restore;
  const Shape s{1111, 65}, row{65};
  const TensorList in{random(s, 1, DType::f32), random(s, 2, DType::f32),
                      random(row, 3, DType::f32)};
  const Tensor dy = random(s, 5, DType::f32), dsum = random(s, 6, DType::f32);
  set_num_threads(1);
  const TensorList one = run(in, dy, dsum);
  set_num_threads(3);
  const TensorList three = run(in, dy, dsum);
  for (int i = 0; i < 5; ++i) CHECK(different_bits(one[i], three[i]) == "");

  const Tensor x = Tensor::empty({2, 3}, DType::bf16, kMeta);
  const RmsNormResidual r = rms_norm_residual(x, x);
  CHECK(r.y.shape() == x.shape());
  CHECK(r.sum.dtype() == DType::bf16);
}

TEST_CASE("rms_norm: an in-place change of the saved sum is an error") {
  Tensor x = random({2, 3});
  x.set_requires_grad();
  Tape tape;
  const RmsNormResidual r = rms_norm_residual(x, random({2, 3}));
  const Tensor loss = r.y.sum();
  r.sum.bump_version();
  CHECK(error_of([&] { tape.backward(loss); }) ==
        "rms_norm_residual: saved sum was changed in place (version 1, saved at 0)");
}

TEST_CASE("rms_norm: errors name the rule and both shapes") {
  const Tensor x = random({2, 4});
  CHECK(error_of([&] { rms_norm(x, random({3})); }) ==
        "rms_norm: weight must have shape [4] (last axis of x [2, 4]), got [3]");
  CHECK(error_of([&] { rms_norm(x, random({4}, 1, DType::f32)); }) ==
        "rms_norm: weight must have dtype f64 like x, got f32");
  CHECK(error_of([&] { rms_norm(x, Tensor::empty({4}, DType::f64, kMeta)); }) ==
        "rms_norm: weight must be on device cpu like x, got meta");
  CHECK(error_of([&] {
          rms_norm(random({3, 0}));
        }) == "rms_norm: x must have a non-empty last axis, got shape [3, 0]");
  CHECK(error_of([&] { rms_norm(Tensor::ones({})); }) ==
        "rms_norm: x must have a non-empty last axis, got shape []");
  CHECK(error_of([&] { rms_norm(x.to(DType::i32)); }) ==
        "rms_norm: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(error_of([&] { rms_norm_residual(x, random({4})); }) ==
        "rms_norm_residual: residual must have shape [2, 4] (like x [2, 4]), got [4]");
  CHECK(error_of([&] { rms_norm_residual(x, {}); }) ==
        "rms_norm_residual: residual must be a tensor, got null");
  Tensor leaf = random({2, 4});
  leaf.set_requires_grad();
  Tape outer, inner;
  const Tensor y = rms_norm(leaf);
  CHECK(error_of([&] {
          inner.gradients(y, {leaf}, x);
        }).starts_with("rms_norm: its backward is a fused kernel"));
}

}  // namespace weft::rms_norm_test
