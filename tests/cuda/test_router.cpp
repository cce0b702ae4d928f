#include <doctest/doctest.h>

#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/router.h"
#include "weft/autograd/router_gate.h"
#include "weft/core/random.h"
#include "weft/nn/router_step.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::router_test {
namespace {

using test::Agreement;
using test::different_bits;
using test::disagreement;
using test::kGpu;
using test::Op;
using test::random;

const RouterOptions kModes[] = {
    {.topk = 2},
    {.topk = 1, .pre_softmax = true},
    {.topk = 5, .pre_softmax = true, .scaling = 2.5},
    {.topk = 1, .score = RouterScore::sigmoid},
    {.topk = 3, .score = RouterScore::sigmoid, .scaling = 2.5},
    {.topk = 4, .score = RouterScore::sqrt_softplus},
    {.topk = 1, .score = RouterScore::sqrt_softplus},
    {.topk = 4, .groups = 4, .group_topk = 2},
    {.topk = 4, .pre_softmax = true, .groups = 4, .group_topk = 3},
    {.topk = 4, .score = RouterScore::sigmoid, .groups = 4, .group_topk = 2},
    {.topk = 3, .score = RouterScore::sqrt_softplus, .groups = 2, .group_topk = 1},
    {.topk = 3,
     .score = RouterScore::sigmoid,
     .normalise = false,
     .groups = 2,
     .group_topk = 2,
     .group_best = 2},
};

Tensor to_gpu(const Tensor& t) { return t.defined() ? t.to(kGpu) : t; }

// Multiples of 1/4 above 0, so that ties occur and rounding makes no two sums equal.
Tensor tied(const Shape& shape, std::uint64_t seed) {
  return div(test::random_in(shape, 1, 24, seed).to(DType::i64).to(DType::f64), 4);
}

// The GPU chooses the same experts as the CPU in every dtype and order.
void same_choice(const Tensor& x, const Tensor& bias, const RouterOptions& o,
                 const Tensor& padding = {}) {
  for (const DType t : test::kFloating) {
    CAPTURE(std::string(name(t)));
    const Tensor logits = x.to(t), on_gpu = logits.to(kGpu);
    const Routing want = route(logits, bias, o, padding);
    test::for_each_order([&] {
      const Routing got = route(on_gpu, to_gpu(bias), o, to_gpu(padding));
      CHECK(different_bits(got.experts.to(kCpu), want.experts) == "");
      CHECK(test::mismatch(got.probs.to(kCpu), want.probs, t == DType::f64 ? 1e-14 : 1e-6) == "");
    });
  }
}

}  // namespace

TEST_CASE("router: chooses the CPU's experts in every mode including ties") {
  for (const RouterOptions& o : kModes)
    for (const Shape& s : {Shape{9, 8}, Shape{5, 36}, Shape{3, 64}, Shape{0, 8}}) {
      CAPTURE(to_string(s));
      CAPTURE(static_cast<int>(o.score));
      CAPTURE(o.topk);
      CAPTURE(o.groups);
      same_choice(tied(s, 3), {}, o);
      same_choice(random(s, 4), {}, o);
      if (o.score == RouterScore::softmax) continue;
      same_choice(tied(s, 5), div(tied({s[1]}, 6), 8).to(DType::f32), o);
    }
}

TEST_CASE("router: extremes, padding, one expert, and the most experts and slots") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Tensor odd = Tensor::of(
      {-inf, 3, -inf, -inf, 1, nan, 5, 2, -90, -70, -80, -60, 0, -0.0, 0, -0., 1e9, -1e9, 1e9, 0},
      {5, 4}, DType::f64);
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sqrt_softplus})
    same_choice(odd, {}, {.topk = 3, .score = score});
  same_choice(random({6, 1}, 1), {}, {.topk = 1, .pre_softmax = true});
  same_choice(tied({5, 3}, 1), {}, {.topk = 3});
  same_choice(tied({5, 16}, 2), {}, {.topk = 2, .score = RouterScore::sigmoid},
              Tensor::of({1, 0, 1, 0, 0}, {5}, DType::boolean));
  same_choice(random({2, 1024}, 3), {}, {.topk = 32});
  same_choice(tied({2, 1024}, 4), {}, {.topk = 32, .groups = 64, .group_topk = 8});
  same_choice(random({1, 1000}, 5), {},
              {.topk = 10, .score = RouterScore::sigmoid, .groups = 1000, .group_topk = 10});
}

TEST_CASE("router: sinkhorn chooses the CPU's experts") {
  const Tensor x = random({24, 9}, 3);
  for (const std::int64_t k : {1, 3}) {
    const Routing want = route_sinkhorn(x, k, true);
    test::for_each_order([&] {
      const Routing got = route_sinkhorn(x.to(kGpu), k, true);
      CHECK(different_bits(got.experts.to(kCpu), want.experts) == "");
    });
    const Op op = [=](const TensorList& in) {
      return TensorList{route_sinkhorn(in[0], k, true).probs};
    };
    CHECK(disagreement(op, {x}, {.dtypes = {DType::f64}}) == "");
  }
}

TEST_CASE("router: the gate's logits and gradients equal the CPU's") {
  const Op gate = [](const TensorList& in) {
    return TensorList{router_logits(in[0], in[1], in[2])};
  };
  CHECK(disagreement(gate, {random({5, 16}, 1), random({8, 16}, 2), random({8}, 3)},
                     {.tolerance = 4}) == "");
}

TEST_CASE("router: the gate's product stays exact when TF32 is allowed") {
  cuda::allow_tf32(true);
  const TensorList in{random({5, 16}, 1), random({8, 16}, 2)};
  const Op gate = [](const TensorList& t) { return TensorList{router_logits(t[0], t[1])}; };
  const Op layer = [](const TensorList& t) { return TensorList{linear(t[0], t[1])}; };
  CHECK(disagreement(gate, in, {.dtypes = {DType::f32}}) == "");
  CHECK(disagreement(layer, in, {.dtypes = {DType::f32}}) != "");
  cuda::allow_tf32(false);
  CHECK(disagreement(layer, in, {.dtypes = {DType::f32}}) == "");
}

TEST_CASE("router: the module gives the CPU's loss, gradient and counts without a host wait") {
  nn::Router router(6, 16,
                    {.route = {.topk = 2, .score = RouterScore::sigmoid},
                     .expert_bias = true,
                     .balance = {{nn::Balance::aux, 0.1},
                                 {nn::Balance::sequence, 0.2},
                                 {nn::Balance::global, 0.3}},
                     .z_loss = 0.01,
                     .capacity_factor = 1,
                     .jitter = 0.1});
  nn::assign_names(router);
  nn::Router there = nn::clone(router);
  there.to(kGpu);
  const Tensor x = random({24, 16}, 1, DType::f32), x_there = x.to(kGpu);
  const Tensor dy = random({24, 2}, 2, DType::f32), dy_there = dy.to(kGpu);
  const auto step = [](const nn::Router& r, const Tensor& in, const Tensor& cotangent) {
    const RandomScope scope({.seed = 1, .step = 2});
    Tape tape;
    const nn::Routed out = r(in, {.sequences = 3});
    const Tensor total = add(sum(mul(out.routing.probs, cotangent)), out.loss);
    return tape.gradients(total, {r.weight})[0];
  };
  const Tensor want = step(router, x, dy), want_losses = nn::RouterStep(router).losses().kinds;
  const Tensor want_load = nn::update_expert_bias(router, 1e-3);
  const std::int64_t waited = cuda::host_syncs();
  const Tensor got = step(there, x_there, dy_there), losses = nn::RouterStep(there).losses().kinds;
  const Tensor load = nn::update_expert_bias(there, 1e-3);
  CHECK(cuda::host_syncs() == waited);
  CHECK(test::mismatch(got.to(kCpu), want, 2e-5) == "");
  CHECK(test::mismatch(losses.to(kCpu), want_losses, 2e-6) == "");
  CHECK(different_bits(load.to(kCpu), want_load) == "");
  CHECK(different_bits(there.expert_bias.to(kCpu), router.expert_bias) == "");
}

TEST_CASE("router: probabilities and gradients in every mode") {
  for (const RouterOptions& o : kModes)
    for (const Shape& s : {Shape{9, 8}, Shape{3, 36}, Shape{2, 264}}) {
      CAPTURE(to_string(s));
      CAPTURE(static_cast<int>(o.score));
      CAPTURE(o.topk);
      const Agreement how{.dtypes = {DType::f32, DType::f64}, .all_orders = s.numel() < 100};
      const Op op = [&](const TensorList& in) { return TensorList{route(in[0], {}, o).probs}; };
      CHECK(disagreement(op, {random(s, 7)}, how) == "");
      CHECK(disagreement(op, {test::strided(random(s, 8))}, how) == "");
      // The gradient of 16-bit logits has their dtype.
      CHECK(disagreement(op, {random(s, 9)},
                         {.dtypes = {DType::bf16, DType::f16}, .all_orders = s.numel() < 100}) ==
            "");
    }
  const Tensor padding = Tensor::of({0, 1, 1, 0, 1}, {5}, DType::boolean);
  for (const RouterOptions& o : {kModes[0], kModes[2], kModes[5]}) {
    const Op padded = [&](const TensorList& in) {
      return TensorList{route(in[0], {}, o, in[1]).probs};
    };
    CHECK(disagreement(padded, {random({5, 8}, 7), padding}) == "");
  }
  // Rows that start between two packs.
  const Op shifted = [](const TensorList& in) {
    return TensorList{route(in[0].alias({4, 8}, {8, 1}, 1), {}, {.topk = 2}).probs};
  };
  CHECK(disagreement(shifted, {random({5, 8}, 9)}, {.gradients = false}) == "");
}

}  // namespace weft::router_test
