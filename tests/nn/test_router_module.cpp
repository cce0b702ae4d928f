#include <doctest/doctest.h>

#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/router_loss.h"
#include "weft/autograd/view.h"
#include "weft/core/random.h"
#include "weft/nn/router.h"
#include "weft/nn/router_step.h"
#include "weft/tests/router_support.h"

namespace weft::router_module_test {
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

}  // namespace

TEST_CASE("router_module: R4 a zero weight gives the coefficient in every scope") {
  for (const Balance scope : {Balance::aux, Balance::sequence, Balance::global})
    for (const RouterOptions& o : {RouterOptions{.topk = 2}, kSigmoid}) {
      Router router(8, 16, {.route = o, .balance = {{scope, 0.02}}, .init = nn::Init::constant(0)});
      const Pass p = run(router, random({24, 16}, 1, DType::f32), {.sequences = 4});
      CHECK(p.loss.item() == doctest::Approx(0.02).epsilon(1e-6).scale(0));
    }
}

TEST_CASE("router_module: R12 forced balance differs by rank and keeps the gate's gradient") {
  Router router(16, 8, {.route = {.topk = 2}, .force_balance = true});
  nn::assign_names(router);
  const Tensor x = random({4096, 8}, 1, DType::f32);
  const auto chosen = [&](std::uint64_t row, std::uint64_t micro) {
    const RandomScope scope({.seed = 3, .step = 5, .micro_batch = micro, .first_global_row = row});
    return router(x, {.sequences = 4}).routing.experts;
  };
  CHECK(different_bits(chosen(0, 0), chosen(0, 0)) == "");
  CHECK(different_bits(chosen(0, 0), chosen(4, 0)) != "");
  CHECK(different_bits(chosen(0, 0), chosen(0, 1)) != "");
  CHECK(max(count_experts(chosen(0, 0), 16)).item() < 1.1 * 4096 * 2 / 16);
  // The second rank draws the numbers that one rank with all rows would draw for them.
  {
    const RandomScope scope({.seed = 3, .step = 5, .first_global_row = 2});
    const Tensor half = router(x.narrow(0, 2048, 2048), {.sequences = 2}).routing.experts;
    CHECK(different_bits(half, contiguous(chosen(0, 0).narrow(0, 2048, 2048))) == "");
  }
  CHECK(sum(abs(run(router, x).dweight)).item() > 0);
  // A fixed uneven load: the same experts are busiest in every step.
  Router uneven(16, 8, {.route = {.topk = 2}, .force_balance = true, .force_bias = 1});
  nn::assign_names(uneven);
  const auto busiest = [&](std::uint64_t step) {
    const RandomScope scope({.seed = 3, .step = step});
    return count_experts(uneven(x).routing.experts, 16);
  };
  CHECK(max(busiest(1)).item() > 1.5 * 4096 * 2 / 16);
  CHECK(argmax(busiest(1), 1).item_int() == argmax(busiest(2), 1).item_int());
}

TEST_CASE("router_module: jitter acts only in training and draws by global row") {
  Router router(4, 8, {.route = {.topk = 2}, .jitter = 0.1});
  nn::assign_names(router);
  Router plain = nn::clone(router);
  plain.config.jitter = 0;
  const Tensor x = random({12, 8}, 1, DType::f32);
  const RandomScope scope({.seed = 3, .step = 5});
  const Tensor whole = router(x, {.sequences = 3}).routing.probs;
  CHECK(different_bits(whole, plain(x).routing.probs) != "");
  CHECK(mismatch(whole, plain(x).routing.probs, 0.1) == "");
  CHECK(different_bits(whole, router(x, {.sequences = 3}).routing.probs) == "");
  {
    const RandomScope second({.seed = 3, .step = 5, .first_global_row = 2});
    CHECK(mismatch(router(x.narrow(0, 8, 4)).routing.probs, contiguous(whole.narrow(0, 8, 4)),
                   1e-6) == "");
  }
  router.eval();
  CHECK(different_bits(router(x).routing.probs, plain(x).routing.probs) == "");
}

TEST_CASE("router_module: a coefficient of 0 changes no bit and creates no loss") {
  const Tensor x = random({12, 8}, 1, DType::f32);
  Router plain(4, 8, {.route = {.topk = 2}});
  RouterConfig c{.route = {.topk = 2},
                 .balance = {{Balance::aux, 0}, {Balance::sequence, 0}, {Balance::global, 0}}};
  Router zero(4, 8, c);
  zero.load_state_dict(plain.state_dict());
  const Pass a = run(plain, x), b = run(zero, x);
  CHECK(!b.loss.defined());
  CHECK(!zero.loss_sums.defined());
  CHECK(different_bits(a.dweight, b.dweight) == "");
  CHECK(different_bits(a.dx, b.dx) == "");
  // Several losses together equal the sum of each.
  RouterConfig each{.route = {.topk = 2},
                    .balance = {{Balance::aux, 0.5}, {Balance::sequence, 0.25}},
                    .z_loss = 0.125};
  Router all(4, 8, each);
  all.load_state_dict(plain.state_dict());
  const Tensor logits = x.matmul(plain.weight.detach().t());
  const auto balance = [&](std::int64_t parts, double coefficient) {
    return balance_loss(logits, count_top_experts(logits, 2, parts), RouterScore::softmax,
                        coefficient)
        .item();
  };
  CHECK(run(all, x, {.sequences = 3}).loss.item() ==
        doctest::Approx(balance(1, .5) + balance(3, .25) + z_loss(logits, .125).item())
            .epsilon(1e-5));
}

TEST_CASE("router_module: a recomputed region gives the same bits and counts once") {
  for (const bool biased : {false, true}) {
    const RouterConfig c{
        .route = kSigmoid,
        .expert_bias = biased,
        .balance = {{Balance::aux, 0.1}, {Balance::sequence, 0.2}, {Balance::global, 0.3}},
        .z_loss = 0.01,
        .jitter = 0.1};
    Router once(4, 8, c), twice(4, 8, c);
    nn::assign_names(once);
    nn::assign_names(twice);
    twice.load_state_dict(once.state_dict());
    for (std::uint64_t micro = 0; micro < 3; ++micro) {
      const RandomScope scope({.seed = 1, .step = 1, .micro_batch = micro});
      const Tensor x = random({12, 8}, 5 + micro, DType::f32);
      const Pass a = run(once, x, {.sequences = 2}), b = run(twice, x, {.sequences = 2}, true);
      CHECK(different_bits(a.loss, b.loss) == "");
      CHECK(different_bits(a.dweight, b.dweight) == "");
      CHECK(different_bits(a.dx, b.dx) == "");
    }
    CHECK(sum(twice.tokens_per_expert).item_int() == 12 * 2 * 3);
    CHECK(different_bits(once.tokens_per_expert, twice.tokens_per_expert) == "");
    CHECK(different_bits(once.global_counts, twice.global_counts) == "");
    CHECK(different_bits(once.loss_sums, twice.loss_sums) == "");
  }
}

TEST_CASE(
    "router_module: padding is neither counted nor dispatched and a batch may be all padding") {
  Router router(4, 8,
                {.route = kSigmoid,
                 .expert_bias = true,
                 .balance = {{Balance::aux, 1}, {Balance::sequence, 1}, {Balance::global, 1}},
                 .z_loss = 1});
  const Tensor x = random({6, 8}, 1, DType::f32);
  const Tensor pad = Tensor::of({0, 0, 1, 1, 1, 1}, {6}, DType::boolean);
  {
    Tape tape;
    const Routed r = router(x, {.padding = pad, .sequences = 2});
    for (std::int64_t i = 4; i < 12; ++i) CHECK(r.routing.experts.data<std::int64_t>()[i] == -1);
    CHECK(sum(router.tokens_per_expert).item_int() == 4);
    CHECK(sum(router.global_counts).item_int() == 4);
  }
  // The second sequence is all padding: the loss equals the loss of the first two tokens alone.
  Router alone = nn::clone(router);
  alone.global_counts.zero_();
  router.global_counts.zero_();
  const Pass with = run(router, x, {.padding = pad, .sequences = 2});
  const Pass without = run(alone, x.narrow(0, 0, 2));
  CHECK(with.loss.item() == doctest::Approx(without.loss.item()).epsilon(1e-6));

  nn::update_expert_bias(router, 1e-3);
  const Tensor before = router.expert_bias.clone();
  const Tensor all = Tensor::ones({6}, DType::boolean);
  const Pass p = run(router, x, {.padding = all, .sequences = 2});
  CHECK(p.loss.item() == 0);
  CHECK(mismatch(p.dweight, Tensor::zeros({4, 8}), 0) == "");
  CHECK(mismatch(p.dx, Tensor::zeros({6, 8}), 0) == "");
  CHECK(run(router, Tensor::zeros({0, 8})).loss.item() == 0);
  CHECK(nn::update_expert_bias(router, 1e-3).item() == 0);
  CHECK(different_bits(before, router.expert_bias) == "");
}

TEST_CASE("router_module: token-weighted micro-batches and ranks give one batch's gradient") {
  const Tensor x = random({12, 8}, 1), pad = Tensor::zeros({12}, DType::boolean);
  for (const std::int64_t t : {1, 2, 8}) pad.data<bool>()[t] = true;
  const auto check_parts = [&](const RouterConfig& config, bool reduces) {
    RouterConfig c = config;
    c.dtype = DType::f64;
    Router router(5, 8, c);
    const auto gradient = [&](std::int64_t first, std::int64_t tokens, double weight) {
      if (router.global_counts.defined()) router.global_counts.zero_();
      Tape tape;
      const Routed r = router(x.narrow(0, first, tokens),
                              {.padding = pad.narrow(0, first, tokens), .sequences = tokens / 4});
      return tape.gradients(mul(r.loss, weight), {router.weight})[0];
    };
    const Tensor whole = gradient(0, 12, 1);
    // The counts that an all-reduce over the ranks would give.
    const Tensor counts = count_top_experts(x.matmul(router.weight.detach().t()), 2, 1, pad);
    if (reduces)
      change_shard(router, [&](nn::Shard& s) {
        s.sum_batch = s.sum_all = [&](const Tensor& c1) { c1.copy_(counts); };
      });
    // 2 of 4 tokens count in the first part, 7 of 8 in the second.
    const Tensor parts = add(gradient(0, 4, 2. / 9), gradient(4, 8, 7. / 9));
    CHECK(mismatch(parts, whole, 1e-12) == "");
  };
  check_parts({.route = {.topk = 2}, .balance = {{Balance::sequence, 1}}}, false);
  check_parts({.route = {.topk = 2}, .z_loss = 1}, false);
  for (const Balance scope : {Balance::global, Balance::aux})
    check_parts({.route = {.topk = 2}, .balance = {{scope, 1}}}, true);
}

TEST_CASE(
    "router_module: capacity drops slots, counts the kept ones and leaves the losses unchanged") {
  const Tensor x = random({40, 8}, 1, DType::f32);
  Router open(4, 8, {.route = {.topk = 2}, .balance = {{Balance::aux, 1}}});
  RouterConfig c = open.config;
  c.capacity_factor = 0.75;
  c.drop = DropPolicy::position;
  Router tight(4, 8, c);
  tight.load_state_dict(open.state_dict());
  CHECK(different_bits(run(open, x).loss, run(tight, x).loss) == "");
  CHECK(max(tight.tokens_per_expert).item_int() == 15);  // 40 * 2 / 4 * 0.75
  CHECK(sum(tight.tokens_per_expert).item_int() < sum(open.tokens_per_expert).item_int());
  const Tensor experts = tight(x).routing.experts;
  CHECK(max(count_experts(experts, 4)).item_int() == 15);
  tight.eval();
  open.eval();
  CHECK(different_bits(tight(x).routing.experts, open(x).routing.experts) == "");
}

TEST_CASE("router_module: sinkhorn balances only in training") {
  Router router(8, 8, {.route = {.topk = 1}, .sinkhorn = true, .init = nn::Init::normal(1)});
  const Tensor x = random({64, 8}, 1, DType::f32);
  const auto most = [&] { return max(count_experts(router(x).routing.experts, 8)).item(); };
  const double even = most();
  router.eval();
  CHECK(even < most());
}

TEST_CASE("router_module: R15 gradients of gate, choice and losses match finite differences") {
  Router router(5, 6,
                {.route = {.topk = 2, .score = RouterScore::sqrt_softplus},
                 .bias = true,
                 .expert_bias = true,
                 .balance = {{Balance::aux, 0.3}, {Balance::sequence, 0.5}},
                 .z_loss = 0.2,
                 .init = nn::Init::normal(0.5),
                 .dtype = DType::f64});
  const Tensor x = random({8, 6}, 1), fixed = random({8, 2}, 9);
  router.expert_bias.copy_(test::random_in({5}, -.3, .3, 4).to(DType::f32));
  // Losses exist only while a tape records.
  const auto total = [&] {
    const Routed r = router(x, {.sequences = 2});
    return add(sum(mul(r.routing.probs, fixed)), r.loss);
  };
  const auto value = [&] {
    const Tape tape;
    return total().item();
  };
  Tape tape;
  const TensorList g = tape.gradients(total(), {router.weight, router.bias});
  for (const auto& [parameter, gradient] : {std::pair{router.weight, g[0]}, {router.bias, g[1]}})
    for (std::int64_t i = 0; i < parameter.numel(); ++i) {
      double& w = parameter.data<double>()[i];
      const double was = w, step = 1e-6;
      w = was + step;
      const double up = value();
      w = was - step;
      const double down = value();
      w = was;
      CHECK(std::abs((up - down) / (2 * step) - gradient.data<double>()[i]) < 1e-8);
    }
}

TEST_CASE("router_module: bf16 x has f32 probabilities and bf16 gradients") {
  Router router(4, 8, {.route = {.topk = 2}, .balance = {{Balance::aux, 1}}, .dtype = DType::bf16});
  const Tensor x = random({12, 8}, 1, DType::bf16);
  Tensor leaf = x.detach().set_requires_grad();
  Tape tape;
  const Routed r = router(leaf);
  CHECK(r.routing.probs.dtype() == DType::f32);
  CHECK(r.loss.dtype() == DType::f32);
  const TensorList g = tape.gradients(r.loss, {leaf, router.weight});
  CHECK(g[0].dtype() == DType::bf16);
  CHECK(g[1].dtype() == DType::bf16);
}

TEST_CASE("router_module: meta device, materialise and printed text") {
  const nn::DeviceScope on_meta(kMeta);
  Router router(4, 8,
                {.route = kSigmoid,
                 .expert_bias = true,
                 .balance = {{Balance::aux, 1}, {Balance::global, 1}},
                 .z_loss = 1});
  {
    Tape tape;
    const Routed r = router(Tensor::empty({6, 8}, DType::f32, kMeta));
    CHECK(r.routing.experts.shape() == Shape{6, 2});
    CHECK(r.loss.shape() == Shape{});
    CHECK(nn::update_expert_bias(router, 1e-3).shape() == Shape{1});
  }
  nn::materialise(router, kCpu, 3);
  CHECK(sum(abs(router.expert_bias)).item() == 0);
  CHECK(run(router, random({6, 8}, 1, DType::f32)).loss.item() > 0);
  CHECK(router.describe() == "Router(8 -> 2 of 4, expert bias)");
  CHECK(router.parameter_count() == 32);
}

TEST_CASE("router_module: errors name the rule") {
  const auto text = [](const RouterConfig& c, std::int64_t experts = 8) {
    return error_of([&] { Router(experts, 4, c); });
  };
  CHECK(text({.route = {.topk = 9}}) ==
        "router: topk must be at most the number of experts 8, got 9");
  CHECK(text({.route = {.topk = 1}}) ==
        "router: topk 1 with softmax needs pre_softmax = true (a softmax over one expert is always "
        "1 and has no gradient), got false");
  CHECK(text({.route = {.groups = 3, .group_topk = 1}}) ==
        "router: groups must divide the number of experts 8, got 3");
  CHECK(text({.route = {.topk = 2, .groups = 4, .group_topk = 3}}) ==
        "router: topk must be at least group_topk 3 (a group's score is the sum of its topk / "
        "group_topk best), got 2");
  CHECK(text({.route = {.topk = 3, .groups = 4, .group_topk = 1}}) ==
        "router: topk must be at most 2 (group_topk 1 groups of 2 experts), got 3");
  CHECK(text({.expert_bias = true}) ==
        "router: an expert bias goes with score sigmoid or sqrt_softplus, got softmax");
  CHECK(text({.balance = {{Balance::aux, 0.01}}, .sinkhorn = true}) ==
        "router: sinkhorn balances by itself; the coefficient of a balance loss must be 0, got "
        "0.01");
  CHECK(text({.sinkhorn = true, .capacity_factor = 1}) ==
        "router: sinkhorn drops nothing; capacity_factor must be 0 with it, got 1");
  CHECK(text({.expert_bias = true, .sinkhorn = true}) ==
        "router: sinkhorn balances by itself; expert_bias must be false with it");
  CHECK(text({.route = kSigmoid, .sinkhorn = true}) ==
        "router: sinkhorn has its own scores; of route, only topk may be set");
  CHECK(text({.route = {.topk = 9}, .sinkhorn = true}) ==
        "router: topk must be at most the number of experts 8, got 9");
  CHECK(text({.balance = {{Balance::aux, -1}}}) ==
        "router: a balance coefficient must be at least 0, got -1");
  CHECK(text({.balance = {{Balance::global, 1}, {Balance::global, 1}}}) ==
        "router: balance may name each scope once, got global twice");
  CHECK(text({.z_loss = -1}) == "router: z_loss must be at least 0, got -1");
  CHECK(text({.capacity_factor = -1}) == "router: capacity_factor must be at least 0, got -1");
  CHECK(text({.jitter = 1}) == "router: jitter must be in [0, 1), got 1");
  CHECK(text({.force_bias = 1}) == "router: force_bias 1 needs force_balance");
  CHECK(text({.force_balance = true, .force_bias = -1}) ==
        "router: force_bias must be at least 0, got -1");
  CHECK(error_of([] { Router(4, 0, {}); }) == "router: dim must be at least 1, got 0");
  CHECK(text({}, 1025) == "router: experts must be in [1, 1024], got 1025");

  Stack mixed(1, {});
  mixed.routers.emplace_back(5, 8, RouterConfig{});
  CHECK(error_of([&] { nn::RouterStep{mixed}; }) ==
        "router step: all routers must have the same number of experts, got 4 and 5 at routers.1");
  CHECK(error_of([&] { nn::update_expert_bias(mixed.routers[0], -1); }) ==
        "router step: rate must be at least 0, got -1");
}

}  // namespace weft::router_module_test
