#include <doctest/doctest.h>

#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/router_loss.h"
#include "weft/core/allocator.h"
#include "weft/core/random.h"
#include "weft/nn/router.h"
#include "weft/nn/router_step.h"
#include "weft/tests/count_new.h"
#include "weft/tests/router_support.h"

namespace weft::router_step_test {
namespace {

using nn::Balance;
using nn::Routed;
using nn::Router;
using nn::RouterConfig;
using test::different_bits;
using test::error_of;
using test::mismatch;
using test::Pass;
using test::random;
using test::run;
using test::Stack;

const RouterOptions kSigmoid{.topk = 2, .score = RouterScore::sigmoid};

Tensor i64(std::initializer_list<double> v) {
  return Tensor::of(v, {static_cast<std::int64_t>(v.size())}, DType::i64);
}

}  // namespace

TEST_CASE("router_step: R8 global counts add up over three micro-batches and reset to 0") {
  Router router(6, 8, {.route = {.topk = 2}, .balance = {{Balance::global, 1}}});
  Tensor all = Tensor::zeros({6}, DType::i64);
  for (int micro = 0; micro < 3; ++micro) {
    const Tensor x = random({10, 8}, 5 + static_cast<std::uint64_t>(micro), DType::f32);
    const Pass p = run(router, x);
    const Tensor logits = x.matmul(router.weight.detach().t());
    all = add(all, count_top_experts(logits, 2).view({6}));
    const Tensor want = balance_loss(logits, all.view({1, 6}), RouterScore::softmax, 1);
    CHECK(p.loss.item() == doctest::Approx(want.item()).epsilon(1e-5));
    // In the first micro-batch of a step the global loss equals the aux loss.
    if (micro == 0) {
      const Tensor aux =
          balance_loss(logits, count_top_experts(logits, 2), RouterScore::softmax, 1);
      CHECK(p.loss.item() == doctest::Approx(aux.item()).epsilon(1e-5));
    }
  }
  CHECK(different_bits(router.global_counts, all) == "");
  CHECK(sum(router.global_counts).item_int() == 10 * 3 * 2);
  nn::update_expert_bias(router, 0);
  CHECK(sum(router.global_counts).item_int() == 0);
  CHECK(sum(router.tokens_per_expert).item_int() == 0);
}

TEST_CASE("router_step: R9 the bias falls by the rate where the load is above the mean") {
  Router router(4, 8, {.route = kSigmoid, .expert_bias = true});
  router.tokens_per_expert.copy_(i64({2, 3, 2, 1}));
  const Tensor load = nn::update_expert_bias(router, 1e-3);
  CHECK(different_bits(router.expert_bias, Tensor::of({0, -.001, 0, .001}, {4})) == "");
  CHECK(mismatch(load, Tensor::of({1.5}, {1}), 0) == "");
  CHECK(sum(router.tokens_per_expert).item_int() == 0);
  // Equal counts or zero counts: no change.
  router.tokens_per_expert.copy_(i64({5, 5, 5, 5}));
  nn::update_expert_bias(router, 1e-3);
  nn::update_expert_bias(router, 1e-3);
  CHECK(different_bits(router.expert_bias, Tensor::of({0, -.001, 0, .001}, {4})) == "");
  // One token above the mean among very many, a difference that f32 cannot represent.
  const double many = 1 << 26;
  router.tokens_per_expert.copy_(i64({many + 1, many, many - 1, many}));
  nn::update_expert_bias(router, 1e-3);
  CHECK(different_bits(router.expert_bias, Tensor::of({-.001, -.001, .001, .001}, {4})) == "");
  // A frozen router keeps its bias.
  router.weight.set_requires_grad(false);
  router.tokens_per_expert.copy_(i64({2, 3, 2, 1}));
  nn::update_expert_bias(router, 1e-3);
  CHECK(different_bits(router.expert_bias, Tensor::of({-.001, -.001, .001, .001}, {4})) == "");
}

TEST_CASE("router_step: R9 bias and counts keep f32 and i64 in a bf16 model") {
  Router router(4, 8, {.route = kSigmoid, .expert_bias = true, .balance = {{Balance::global, 1}}});
  router.expert_bias.fill_(1);
  router.to(DType::bf16);
  CHECK(router.weight.dtype() == DType::bf16);
  CHECK(router.expert_bias.dtype() == DType::f32);
  CHECK(router.tokens_per_expert.dtype() == DType::i64);
  CHECK(router.global_counts.dtype() == DType::i64);
  router.tokens_per_expert.copy_(i64({2, 3, 2, 1}));
  nn::update_expert_bias(router, 1e-3);  // bf16 has no number between 1 and 1.0078
  CHECK(mismatch(router.expert_bias, Tensor::of({1, .999, 1, 1.001}, {4}), 1e-7) == "");
  // Counting stays exact where bf16 would stop at 256 and f32 would lose the last digits.
  router.tokens_per_expert.fill_(40000);
  run(router, random({10, 8}, 1, DType::bf16));
  CHECK(sum(router.tokens_per_expert).item_int() == 4 * 40000 + 20);
}

TEST_CASE("router_step: R9 counts only while a tape records in training and saves only the bias") {
  Router router(4, 8, {.route = kSigmoid, .expert_bias = true, .balance = {{Balance::aux, 1}}});
  const Tensor x = random({10, 8}, 1, DType::f32);
  CHECK(!router(x).loss.defined());
  {
    Tape tape;
    const NoGradGuard off;
    CHECK(!router(x).loss.defined());
  }
  router.eval();
  {
    Tape tape;
    CHECK(!router(x).loss.defined());
  }
  CHECK(sum(router.tokens_per_expert).item_int() == 0);
  CHECK(sum(router.loss_sums).item() == 0);
  router.train();
  run(router, x);
  CHECK(sum(router.tokens_per_expert).item_int() == 20);

  nn::update_expert_bias(router, 1e-3);
  Router other = nn::clone(router);
  CHECK(different_bits(other.expert_bias, router.expert_bias) == "");
  const StateDict state = router.state_dict();
  CHECK(state.size() == 2);  // weight and expert_bias
  Router fresh(4, 8, {.route = kSigmoid, .expert_bias = true, .balance = {{Balance::aux, 1}}});
  fresh.load_state_dict(state);
  CHECK(different_bits(fresh.expert_bias, router.expert_bias) == "");
  CHECK(different_bits(fresh(x).routing.probs, router(x).routing.probs) == "");
}

TEST_CASE("router_step: R9 reduced counts give ranks with different tokens one bias") {
  Stack a(2, {.route = kSigmoid, .expert_bias = true});
  Stack b(2, {.route = kSigmoid, .expert_bias = true});
  for (std::size_t i = 0; i < 2; ++i) {
    for (const auto& [stack, seed] : {std::pair{&a, 1}, {&b, 20}})
      run(stack->routers[i], random({16, 8}, static_cast<std::uint64_t>(seed) + i, DType::f32));
  }
  Tensor both = Tensor::zeros({2, 4}, DType::i64);
  for (const Stack* s : {&a, &b})
    for (std::size_t i = 0; i < 2; ++i)
      both.select(0, static_cast<std::int64_t>(i)).add_(s->routers[i].tokens_per_expert);
  for (Stack* s : {&a, &b}) {
    int calls = 0;
    nn::update_expert_bias(*s, 1e-3, [&](const Tensor& counts) {
      ++calls;
      counts.copy_(both);
    });
    CHECK(calls == 1);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(different_bits(a.routers[i].expert_bias, b.routers[i].expert_bias) == "");
    CHECK(sum(abs(a.routers[i].expert_bias)).item() > 0);
  }
}

TEST_CASE("router_step: a constant loss is logged unchanged over layers, passes and recompute") {
  Stack stack(3, {.route = {.topk = 2},
                  .balance = {{Balance::global, 0.02}, {Balance::aux, 0.5}},
                  .z_loss = 1e-3,
                  .init = nn::Init::constant(0)});
  nn::RouterStep step(stack);
  for (const bool again : {false, true}) {
    for (int micro = 0; micro < 4; ++micro)
      for (const Router& r : stack.routers) run(r, random({6, 8}, 1, DType::f32), {}, again);
    const double z = std::log(4.0) * std::log(4.0);
    CHECK(mismatch(step.losses().kinds, Tensor::of({1, 0, 1, z}, {4}), 1e-6) == "");
    CHECK(mismatch(step.losses().layers, Tensor::of({2, 2, 2}, {3}), 1e-6) == "");
    step.finish(0);
    // Layers that nothing trains do not count.
    run(stack.routers[1], random({6, 8}, 1, DType::f32), {}, again);
    CHECK(mismatch(step.losses().kinds, Tensor::of({1, 0, 1, z}, {4}), 1e-6) == "");
    CHECK(mismatch(step.losses().layers, Tensor::of({0, 2, 0}, {3}), 1e-6) == "");
    step.finish(0);
    CHECK(mismatch(step.losses().kinds, Tensor::zeros({4}), 0) == "");
  }
}

TEST_CASE("router_step: a warm step allocates nothing") {
  for (const bool again : {false, true}) {
    Stack stack(2, {.route = kSigmoid,
                    .expert_bias = true,
                    .balance = {{Balance::aux, 1}, {Balance::sequence, 1}, {Balance::global, 1}},
                    .z_loss = 1,
                    .capacity_factor = 1,
                    .jitter = 0.1});
    nn::assign_names(stack);
    nn::RouterStep step(stack);
    const Tensor x = random({64, 8}, 1, DType::f32);
    std::int64_t news = 0, system = 0;
    for (int i = 0; i < 5; ++i) {
      news = test::news;
      system = memory_stats().system_allocs;
      const RandomScope scope({.seed = 1, .step = static_cast<std::uint64_t>(i)});
      for (const Router& r : stack.routers) run(r, x, {.sequences = 4}, again);
      step.losses();
      step.finish(1e-3);
    }
    CHECK(test::news == news);
    CHECK(memory_stats().system_allocs == system);
  }
}

}  // namespace weft::router_step_test
