// Routers on shards of a batch, compared with the whole batch on one rank.
#include <doctest/doctest.h>

#include <array>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/moe.h"
#include "weft/nn/router_step.h"
#include "weft/tests/expert_support.h"

namespace weft::distributed::expert_router_test {
namespace {

using nn::Balance;
using test::mismatch;
using test::part;
using test::random;

}  // namespace

TEST_CASE("R6: a batch split over tp ranks has the losses and gradients of one rank") {
  constexpr std::int64_t B = 3, T = 4, C = 8;
  const Tensor x = random({B, T, C}, 1), dy = random({B, T, C}, 2);
  const auto run = [&](nn::MoE& m, const Tensor& in, const Tensor& cotangent, double* loss,
                       const nn::TokenContext& context = {}) {
    const RandomScope random({.seed = 3, .step = 1, .first_global_row = 5});
    Tape tape;
    const nn::MoeOutput out = m(in, context);
    *loss = out.loss.item();
    add(sum(mul(out.y, cotangent)), out.loss).backward();
  };
  struct Case {
    int ranks;
    Degrees degrees;
  };
  // Three sequences. Two ranks split one of them; shards of four or six ranks start inside a
  // sequence.
  for (const Case& k :
       {Case{2, {.tp = 2, .ep = 2, .etp = 1}}, Case{2, {.tp = 2, .etp = 2}},
        Case{4, {.tp = 4, .ep = 2, .etp = 2}}, Case{6, {.tp = 6, .ep = 2, .etp = 1}}})
    for (const Balance scope : {Balance::aux, Balance::sequence, Balance::global})
      for (const bool noise : {false, true}) {
        CAPTURE(k.ranks);
        CAPTURE(static_cast<int>(scope));
        nn::MoeOptions o{.experts = 4,
                         .router = {.route = {.topk = 2}, .balance = {{scope, 1}}, .z_loss = 0.1},
                         .ffn = 6,
                         .bias = true,
                         .latent = 4};
        if (noise) o.router.jitter = 0.3;
        o.router.force_balance = noise && scope == Balance::aux;
        const auto make = [&] {
          nn::MoE m(C, o);
          nn::init(m, 5);
          m.to(DType::f64);
          return m;
        };
        nn::MoE whole = make();
        double want_loss;
        run(whole, x, dy, &want_loss);
        test::distributed_test(k.ranks, [&](World& w) {
          const DeviceMesh mesh(w, k.degrees);
          nn::MoE m = make();
          const Layout layout = shard_experts(m, mesh, {.sequence_parallel = true});
          const std::int64_t count = B * T / k.ranks, first = w.rank() * count;
          const auto rows = [&](const Tensor& t) {
            return t.view({1, B * T, C}).narrow(1, first, count).contiguous();
          };
          double loss;
          run(m, rows(x), rows(dy), &loss, {.part = nn::TokenPart{B, T, first, count}});
          const Tensor all = Tensor::full({1}, loss, DType::f64);
          w.all().all_reduce(all).wait();
          CHECK(std::abs(all.item() - want_loss) < 1e-12);
          // The log shows each rank's mean over its tokens.
          const Tensor shown = nn::RouterStep(m).losses().kinds;
          w.all().all_reduce(shown).wait();
          CHECK(mismatch(div(shown, k.ranks), nn::RouterStep(whole).losses().kinds, 1e-12) == "");
          const NamedTensors wanted = whole.named_parameters(), own = m.named_parameters();
          for (std::size_t i = 0; i < own.size(); ++i) {
            CAPTURE(own[i].name);
            const ParameterLayout& l = layout.at(own[i].name);
            CHECK(l.tp_partial == !l.expert);
            const Tensor g = own[i].tensor.grad();
            (l.expert ? mesh.edp() : mesh.tp()).all_reduce(g).wait();
            CHECK(mismatch(g, part(wanted[i].tensor.grad(), l.spec), 1e-10) == "");
          }
        });
      }
}

TEST_CASE("R7: with equal data on all dp ranks global counts give the same as aux") {
  for (const int ranks : {2, 4})
    test::distributed_test(ranks, [&](World& w) {
      const DeviceMesh mesh(w, {.ep = ranks, .etp = 1});
      std::array<Tensor, 2> grads;
      for (const bool global : {false, true}) {
        nn::MoE m(8, {.experts = 4,
                      .router = {.balance = {{global ? Balance::global : Balance::aux, 1}},
                                 .init = nn::Init::normal(1)},
                      .ffn = 6});
        nn::init(m, 5);
        shard_experts(m, mesh);
        Tape tape;
        // Every rank's loss is weighted by its share of the tokens.
        mul(m(random({9, 8}, 4, DType::f32)).loss, 1.0 / ranks).backward();
        grads[global] = m.router.weight.grad();
        mesh.dp().all_reduce(grads[global]).wait();
        CHECK(sum(m.router.tokens_per_expert).item() == 18);
        if (global) CHECK(sum(m.router.global_counts).item() == 18 * ranks);
      }
      CHECK(max(grads[0].abs()).item() > 1e-3);
      CHECK(mismatch(grads[1], grads[0], 1e-6) == "");
    });
}

TEST_CASE("R9: global counts move the expert bias equally on ranks with different tokens") {
  test::distributed_test(2, [](World& w) {
    const DeviceMesh mesh(w, {.ep = 2});
    nn::MoE m(4,
              {.experts = 4,
               .router = {.route = {.topk = 2, .score = RouterScore::sigmoid}, .expert_bias = true},
               .ffn = 4});
    shard_experts(m, mesh);
    // The sum is [2, 3, 2, 1]; each rank alone has different counts.
    const Tensor own =
        w.rank() == 0 ? Tensor::of({0, 3, 1, 0}, {4}) : Tensor::of({2, 0, 1, 1}, {4});
    m.router.tokens_per_expert.copy_(own.to(DType::i64));
    (void)nn::update_expert_bias(m, 1e-3, sum_router_counts(mesh));
    CHECK(mismatch(m.router.expert_bias, Tensor::of({0, -1e-3, 0, 1e-3}, {4}), 1e-9) == "");
    CHECK(max(m.router.tokens_per_expert).item() == 0);
  });
}

}  // namespace weft::distributed::expert_router_test
