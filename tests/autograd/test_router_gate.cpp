#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/router_gate.h"
#include "weft/core/allocator.h"
#include "weft/tests/support.h"

namespace weft::router_gate_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

}  // namespace

TEST_CASE("router_gate: gradcheck, and equals linear in f32 and f64") {
  const auto f = [](const TensorList& in) { return router_logits(in[0], in[1], in[2]); };
  const auto bare = [](const TensorList& in) { return router_logits(in[0], in[1]); };
  for (const std::int64_t tokens : {0, 1, 7}) {
    const Tensor x = random({tokens, 5}, 1), w = random({3, 5}, 2), b = random({3}, 3);
    CHECK(gradcheck(f, {x, w, b}) == "");
    CHECK(gradcheck(bare, {test::strided(x), w}) == "");
    CHECK(different_bits(router_logits(x, w, b), linear(x, w, b)) == "");
  }
  const auto square = [](const TensorList& in) { return router_logits(in[0], in[0]); };
  CHECK(gradcheck(square, {random({4, 4}, 1)}) == "");
}

TEST_CASE("router_gate: narrow operands give f32 logits and gradients in the operands' dtype") {
  const Tensor x = random({33, 64}, 1, DType::bf16), w = random({8, 64}, 2, DType::bf16);
  const Tensor bias = random({8}, 3, DType::bf16), dy = random({33, 8}, 4, DType::f32);
  const auto run = [&](DType t) {
    TensorList leaves{x.to(t), w.to(t), bias.to(t)};
    for (Tensor& leaf : leaves) leaf = leaf.detach().set_requires_grad();
    Tape tape;
    const Tensor y = router_logits(leaves[0], leaves[1], leaves[2]);
    TensorList out = tape.gradients(y, leaves, dy.to(y.dtype()));
    out.push_back(y);
    return out;
  };
  const TensorList got = run(DType::bf16), want = run(DType::f64);
  CHECK(got[3].dtype() == DType::f32);
  CHECK(mismatch(got[3], want[3], 2e-6) == "");  // not bf16 precision
  for (int i = 0; i < 3; ++i) {
    CHECK(got[i].dtype() == DType::bf16);
    CHECK(mismatch(got[i], want[i], 4e-3) == "");  // one rounding to bf16
    CHECK(different_bits(got[i], want[i].to(DType::f32).to(DType::bf16)) == "");
  }
}

TEST_CASE("router_gate: an f32 main_grad accumulates the unrounded gradient over passes") {
  const Tensor x = random({33, 64}, 1, DType::bf16), dy = random({33, 8}, 4, DType::f32);
  Tensor w = random({8, 64}, 2, DType::bf16).set_requires_grad();
  w.set_main_grad(Tensor::zeros({8, 64}));
  for (int pass = 0; pass < 2; ++pass) {
    Tape tape;
    tape.backward(router_logits(x, w), dy);
  }
  const Tensor wide_w = w.detach().to(DType::f64).set_requires_grad();
  Tape tape;
  const Tensor want =
      tape.gradients(router_logits(x.to(DType::f64), wide_w), {wide_w}, dy.to(DType::f64))[0];
  CHECK(mismatch(w.main_grad(), mul(want, 2), 1e-5) == "");  // sums of 33 terms, twice
}

TEST_CASE("router_gate: saves only the narrow x and weight") {
  const Tensor x = random({1024, 256}, 1, DType::bf16);
  Tensor w = random({8, 256}, 2, DType::bf16).set_requires_grad();
  Tape tape;
  const std::int64_t before = memory_stats().live_bytes;
  const Tensor y = router_logits(x, w);
  CHECK(memory_stats().live_bytes - before <= y.numel() * 4 + 4096);
}

TEST_CASE("router_gate: meta gives shape and dtype and errors name the rule") {
  const auto empty = [](const Shape& s, DType t) { return Tensor::empty(s, t, kMeta); };
  const Tensor y = router_logits(empty({6, 4}, DType::bf16), empty({3, 4}, DType::bf16));
  CHECK(y.shape() == Shape{6, 3});
  CHECK(y.dtype() == DType::f32);

  const Tensor x = random({2, 4}), w = random({3, 4});
  CHECK(error_of([&] { router_logits({}, w); }) ==
        "router_logits: x must be a tensor, got a null handle");
  CHECK(error_of([&] { router_logits(x, {}); }) ==
        "router_logits: weight must be a tensor, got a null handle");
  CHECK(error_of([&] { router_logits(x.to(DType::i32), w); }) ==
        "router_logits: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(error_of([&] { router_logits(x.view({8}), w); }) ==
        "router_logits: x must have shape [tokens, hidden], got [8]");
  CHECK(error_of([&] {
          router_logits(x, random({3, 5}));
        }) ==
        "router_logits: weight must have shape [experts, 4] (last axis of x [2, 4]), got [3, 5]");
  CHECK(error_of([&] { router_logits(x, w.to(DType::f32)); }) ==
        "router_logits: weight must have dtype f64 like x, got f32");
  CHECK(error_of([&] {
          router_logits(x, empty({3, 4}, DType::f64));
        }) == "router_logits: weight must be on device cpu like x, got meta");
  CHECK(error_of([&] { router_logits(x, w, random({4})); }) ==
        "router_logits: bias must have shape [3] (rows of weight [3, 4]), got [4]");
}

}  // namespace weft::router_gate_test
