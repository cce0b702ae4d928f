// D6: experts with FP8 products, whose rows of an expert are padded to a multiple of 16, and tokens
// that are rounded to FP8 before they are sent.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8.h"
#include "weft/autograd/function.h"
#include "weft/autograd/reduce.h"
#include "weft/core/allocator.h"
#include "weft/nn/moe.h"
#include "weft/tests/poisoned_memory.h"
#include "weft/tests/support.h"

namespace weft::moe_fp8_test {

namespace {

using nn::Dispatch;
using nn::LocalDispatcher;
using nn::MoE;
using test::mismatch;
using test::random;

constexpr std::int64_t kAlignment = 16, kExperts = 6, kWidth = 32, kFfn = 16;

// Rounds the value to e4m3 and passes the gradient through.
Tensor on_the_wire(const Tensor& x) {
  return custom_function(
      "on_the_wire", {x},
      [](const TensorList& in) {
        const double top = in[0].numel() ? weft::max(abs(in[0])).item() : 0;
        if (top == 0) return in[0].clone();
        return div(mul(in[0], 448 / top).to(DType::e4m3).to(in[0].dtype()), 448 / top);
      },
      [](const TensorList&, const Tensor&, const Tensor& dy) { return TensorList{dy}; });
}

enum class Fp8 { none, products, wire };

struct Result {
  TensorList values;  // y, then the gradients of x, of the router and of the experts
  Tensor row_gradients, prob_gradients, slot_of;
  std::vector<std::int64_t> rows;
};

Result run(const MoE& m, const Tensor& given, std::int64_t alignment, Fp8 where) {
  Tensor x = given.detach();
  x.set_requires_grad();
  const fp8::Autocast scope(where == Fp8::products ? std::optional(fp8::Recipe{}) : std::nullopt);
  Tape tape;
  const Routing routing = m.router(x).routing;
  const LocalDispatcher dispatcher(kExperts, alignment);
  // On the wire: rounds before dispatch.
  Dispatch d = dispatcher.dispatch_preprocess(where == Fp8::wire ? on_the_wire(x) : x, routing, 0);
  dispatcher.token_dispatch(d);
  dispatcher.dispatch_postprocess(d);
  Tensor y = m.experts(d.tokens, d.probs, d.expert_rows);
  y = dispatcher.token_combine(dispatcher.combine_preprocess(y, d), d);
  y = dispatcher.combine_postprocess(y, d);
  Result out;
  TensorList g =
      tape.gradients(y, {x, m.router.weight, m.experts.up, m.experts.down, d.tokens, d.probs},
                     random(y.shape(), 9, y.dtype()));
  out.values = {y.detach(), g[0], g[1], g[2], g[3]};
  out.row_gradients = g[4];
  out.prob_gradients = g[5];
  out.slot_of = d.rows.slot_of;
  const auto* n = d.expert_rows.data<std::int64_t>();
  out.rows.assign(n, n + kExperts);
  return out;
}

MoE layer(DType dtype) {
  MoE moe(kWidth, {.experts = kExperts,
                   .router = {.route = {.topk = 2, .score = RouterScore::sigmoid}},
                   .ffn = kFfn});
  std::uint64_t seed = 20;
  for (const Tensor& p : moe.parameters()) p.copy_(mul(random(p.shape(), ++seed, DType::f32), 0.3));
  moe.to(dtype);
  return moe;
}

double distance(const Tensor& a, const Tensor& b) {
  return weft::max(abs(sub(a, b))).item() / weft::max(abs(b)).item();
}

// The bound on how much padding rows may change a result. In f64 the order of summation does not
// depend on the number of rows: no change. For f32 products with more rows oneDNN may sum in
// another order. Two orders of n terms differ by at most 2 n u sum|a b|, u = 2^-24; for n products
// of normal numbers that sum is sqrt(n) 2 / pi times the size of the result. With fp8 products, a
// value close to half-way between two codes may then round the other way.
double tolerance_of(DType dtype, Fp8 where, std::int64_t terms) {
  if (dtype == DType::f64) return 0;
  if (where == Fp8::products) return 0.1;
  const auto n = static_cast<double>(terms);
  return 2 * n * 0x1p-24 * std::sqrt(n) * 0.64;
}

}  // namespace

TEST_CASE("D6: padding rows change nothing with and without fp8 products") {
  // A padding row that was not written would be the largest value.
  const test::PoisonedMemory debug;
  for (const DType dtype : {DType::f32, DType::f64}) {
    const MoE moe = layer(dtype);
    for (const std::int64_t tokens : {1, 5, 33, 200})  // more padding rows than tokens, and fewer
      for (const Fp8 where : {Fp8::none, Fp8::products, Fp8::wire}) {
        CAPTURE(tokens);
        CAPTURE(static_cast<int>(where));
        if (where == Fp8::products && dtype == DType::f64) continue;  // FP8 takes no f64
        const Tensor x = random({tokens, kWidth}, 3, dtype);
        // FP8 products need some padding.
        const std::int64_t least = where == Fp8::products ? kAlignment : 1;
        const std::int64_t most = where == Fp8::products ? 4 * kAlignment : kAlignment;
        const Result bare = run(moe, x, 1, Fp8::none), off = run(moe, x, least, where),
                     on = run(moe, x, most, where);
        std::int64_t used = 0;
        for (std::size_t e = 0; e < on.rows.size(); ++e) {
          CHECK(on.rows[e] % most == 0);
          CHECK(on.rows[e] >= bare.rows[e]);
          CHECK(on.rows[e] < bare.rows[e] + most);
          used += bare.rows[e];
        }
        CHECK(used == 2 * tokens);
        const std::int64_t terms =
            std::max(2 * kFfn, *std::max_element(off.rows.begin(), off.rows.end()));
        for (int i = 0; i < on.values.size(); ++i) {
          CAPTURE(i);
          CHECK(mismatch(on.values[i], off.values[i], tolerance_of(dtype, where, terms)) == "");
        }
        // Padding rows contribute to no gradient.
        const auto* slots = on.slot_of.data<std::int64_t>();
        std::int64_t fillers = 0;
        for (std::int64_t i = 0; i < on.slot_of.numel(); ++i) {
          if (slots[i] >= 0) continue;
          ++fillers;
          CHECK(weft::max(abs(on.row_gradients.select(0, i))).item() == 0);
          CHECK(on.prob_gradients.select(0, i).item() == 0);
        }
        CHECK(fillers == on.slot_of.numel() - used);
        CHECK(fillers > 0);
      }
  }
}

TEST_CASE("D6: tokens sent in fp8 and fp8 products stay close to the f32 layer") {
  const MoE moe = layer(DType::f32);
  const Tensor x = random({200, kWidth}, 3, DType::f32);
  const Result plain = run(moe, x, 1, Fp8::none);
  for (const Fp8 where : {Fp8::wire, Fp8::products})
    for (const std::int64_t alignment : {std::int64_t{1}, kAlignment}) {
      if (where == Fp8::products && alignment == 1) continue;
      const Result got = run(moe, x, alignment, where);
      for (int i = 0; i < got.values.size(); ++i) {
        CAPTURE(i);
        const double d = distance(got.values[i], plain.values[i]);
        CHECK(d < 0.2);
        if (i == 0) CHECK(d > 1e-3);  // three mantissa bits have a visible effect
      }
    }
}

}  // namespace weft::moe_fp8_test
