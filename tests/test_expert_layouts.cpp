// Whole models and routers whose experts are spread over ranks, held against one rank.
#include <doctest/doctest.h>

#include <array>
#include <map>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/reduce.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/gpt.h"
#include "weft/nn/router_step.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed {
namespace {

using nn::Balance;
using nn::Gpt;
using nn::GptConfig;
using nn::Router;
using nn::RouterConfig;
using test::different_bits;
using test::mismatch;
using test::random;

constexpr std::int64_t kSequences = 8, kTokens = 6;

// Experts in two of three blocks and in the MTP depth; balanced by a loss or by a bias.
GptConfig tiny(bool by_bias) {
  GptConfig c{.arch = nn::Arch::llama,
              .layers = 3,
              .heads = 2,
              .dim = 8,
              .ffn = 12,
              .seq = kTokens,
              .vocab = 13,
              .mtp = {.depths = 1},
              .moe = {.experts = 4, .router = {.route = {.topk = 2}}, .ffn = 6, .shared_ffn = 4},
              .moe_layers = {0, 1, 1}};
  RouterConfig& r = c.moe.router;
  r.init = nn::Init::normal(0.5);
  if (by_bias) {
    r.route.score = RouterScore::sigmoid;
    r.expert_bias = true;
  } else {
    r.balance = {{Balance::sequence, 0.1}};
    r.z_loss = 0.01;
  }
  return c;
}

Gpt seeded(const GptConfig& c, DType dtype) {
  Gpt model(c);
  nn::init(model, 7);
  model.to(dtype);
  return model;
}

const Tensor kIds = random({kSequences, kTokens}, 1, DType::i32);
const Tensor kTargets = random({kSequences, kTokens}, 2, DType::i32);

struct Pass {
  double loss = 0;
  std::map<std::string, Tensor> grads, biases;
};

// One step over the sequences first ... first + count, as a share of all of them.
Pass step(Gpt& model, std::int64_t first, std::int64_t count, const Router::Reduce& reduce = {}) {
  nn::RouterStep routers(model);
  model.zero_grad();
  Tape tape;
  const nn::GptLosses losses =
      model.losses(kIds.narrow(0, first, count), kTargets.narrow(0, first, count));
  const Tensor total = losses.total();
  const double share = 1.0 / static_cast<double>(kSequences * kTokens);
  total.backward(Tensor::full({}, share, total.dtype()));
  Pass p;
  p.loss = total.item() * share;
  for (const NamedTensor& t : model.named_parameters()) p.grads[t.name] = t.tensor.grad();
  (void)routers.finish(1e-2, reduce);
  for (const auto& [name, t] : model.state_dict())
    if (name.ends_with("expert_bias")) p.biases[name] = t.clone();
  return p;
}

// What this rank has of it after the gradients have been summed.
Pass step(World& w, const Degrees& degrees, const GptConfig& c, DType dtype,
          const ExpertPlan& plan = {}) {
  const DeviceMesh mesh(w, degrees);
  Gpt model = seeded(c, dtype);
  const Layout layout = shard_experts(model, mesh, plan);
  const std::int64_t count = kSequences / w.size();
  Pass p = step(model, w.rank() * count, count, sum_router_counts(mesh));
  for (auto& [name, g] : p.grads) {
    const auto entry = layout.find(name);
    const bool expert = entry != layout.end() && entry->second.expert;
    (expert ? mesh.edp() : mesh.dp_cp()).all_reduce(g).wait();
  }
  const Tensor loss = Tensor::full({1}, p.loss, DType::f64);
  w.all().all_reduce(loss).wait();
  p.loss = loss.item();
  return p;
}

Tensor part(const Tensor& whole, const nn::Part& p) {
  Tensor own = whole;
  for (const nn::Part::Cut& cut : p.cuts) {
    TensorList pieces;
    for (const auto& [begin, end] : cut.ranges)
      pieces.push_back(own.narrow(cut.axis, begin, end - begin));
    own = cat(pieces, cut.axis);
  }
  return own;
}

struct Grid {
  int ranks;
  Degrees degrees;
};
const Grid kGrids[] = {{2, {.ep = 2, .etp = 1}}, {4, {.ep = 4, .etp = 1}},
                       {4, {.ep = 2, .etp = 1}}, {2, {.ep = 1, .etp = 2}},
                       {4, {.ep = 2, .etp = 2}}, {8, {.ep = 4, .etp = 1}}};

}  // namespace

TEST_CASE("P2: loss, gradients and expert biases of every layout are those of one rank") {
  for (const bool by_bias : {false, true}) {
    const GptConfig c = tiny(by_bias);
    Gpt whole = seeded(c, DType::f64);
    const Pass want = step(whole, 0, kSequences);
    CHECK(want.biases.size() == (by_bias ? 3u : 0u));
    for (const Grid& grid : kGrids)
      for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
        CAPTURE(by_bias);
        CAPTURE(grid.ranks);
        CAPTURE(grid.degrees.ep);
        test::distributed_test(grid.ranks, [&](World& w) {
          const DeviceMesh mesh(w, grid.degrees);
          Gpt shape_only = seeded(c, DType::f64);
          const Layout layout = shard_experts(shape_only, mesh);
          const Pass got = step(w, grid.degrees, c, DType::f64, {.dispatcher = kind});
          CHECK(std::abs(got.loss - want.loss) < 1e-12);
          for (const auto& [name, g] : want.grads) {
            CAPTURE(name);
            const auto entry = layout.find(name);
            CHECK(mismatch(got.grads.at(name),
                           entry == layout.end() ? g : part(g, entry->second.part), 1e-12) == "");
          }
          for (const auto& [name, b] : want.biases)
            CHECK(different_bits(got.biases.at(name), b) == "");
        });
      }
  }
}

TEST_CASE("a layout repeats itself bit by bit") {
  test::distributed_test(4, [](World& w) {
    const Degrees degrees{.ep = 2, .etp = 2};
    const Pass a = step(w, degrees, tiny(false), DType::f32);
    const Pass b = step(w, degrees, tiny(false), DType::f32);
    CHECK(a.loss == b.loss);
    for (const auto& [name, g] : a.grads) CHECK(different_bits(g, b.grads.at(name)) == "");
  });
}

TEST_CASE("experts on other ranks: a model's output has the bits of one rank") {
  for (const int ranks : {2, 4})
    test::distributed_test(ranks, [&](World& w) {
      const DeviceMesh mesh(w, {.ep = ranks, .etp = 1});
      const Gpt one = seeded(tiny(true), DType::f32);
      const Tensor ids = kIds.narrow(0, 2 * w.rank(), 2);
      const Tensor want = one(ids);
      for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
        Gpt many = seeded(tiny(true), DType::f32);
        shard_experts(many, mesh, {.dispatcher = kind});
        CHECK(different_bits(many(ids), want) == "");
      }
    });
}

TEST_CASE("every layout starts with the same model, made whole or on the meta device") {
  test::distributed_test(4, [](World& w) {
    const DeviceMesh mesh(w, {.ep = 2, .etp = 2});
    const Gpt whole = seeded(tiny(false), DType::f32);
    Gpt cut = seeded(tiny(false), DType::f32);
    const Layout layout = shard_experts(cut, mesh);
    nn::DeviceScope on_meta(kMeta);
    Gpt made(tiny(false));
    shard_experts(made, mesh);
    nn::Parts parts;
    for (const auto& [name, l] : layout) parts[name] = l.part;
    nn::materialise(made, kCpu, 7, parts);
    const StateDict all = whole.state_dict(), a = cut.state_dict(), b = made.state_dict();
    for (const auto& [name, t] : all) {
      CAPTURE(name);
      const auto entry = layout.find(name);
      const Tensor want = entry == layout.end() ? t : part(t, entry->second.part);
      CHECK(different_bits(a.at(name), want) == "");
      CHECK(different_bits(b.at(name), want) == "");
    }
    const ParameterLayout& up = layout.at("blocks.1.moe.experts.gate_up");
    CHECK(up.expert);
    CHECK(up.tp_cut);
    CHECK(up.part.whole == Shape{4, 12, 8});
    const std::int64_t e = mesh.ep().rank(), q = mesh.etp().rank();
    using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
    CHECK(up.part.cuts[0].ranges == Ranges{{2 * e, 2 * e + 2}});
    CHECK(up.part.cuts[1].ranges == Ranges{{3 * q, 3 * q + 3}, {6 + 3 * q, 9 + 3 * q}});
    CHECK(layout.count("mtp.0.block.moe.experts.down") == 1);
    CHECK(layout.count("blocks.1.moe.router.weight") == 0);  // tp is 1: like any other
  });
}

TEST_CASE("O2: ranks make the same collectives when one has no tokens, or its experts get none") {
  for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather})
    for (const Degrees& degrees : {Degrees{.ep = 4, .etp = 1}, Degrees{.ep = 2, .etp = 2}})
      for (const bool idle : {false, true}) {
        test::distributed_test(4, [&](World& w) {
          const DeviceMesh mesh(w, degrees);
          nn::MoE moe(8, {.experts = 4,
                          .router = {.balance = {{Balance::global, 0.1}}},
                          .ffn = 6,
                          .shared_ffn = 4});
          if (idle) moe.router.weight.zero_();  // all tokens go to experts 0 and 1
          shard_experts(moe, mesh, {.dispatcher = kind});
          Tensor x = random({!idle && w.rank() == 1 ? 0 : 5, 8}, 3, DType::f32);
          x.set_requires_grad();
          Tape tape;
          const nn::MoeOutput out = moe(x);
          add(sum(out.y), out.loss).backward();
          (void)nn::update_expert_bias(moe, 1e-3, sum_router_counts(mesh));
          for (const NamedTensor& p : moe.named_parameters()) {
            CAPTURE(p.name);
            REQUIRE(p.tensor.grad());
            if (idle && degrees.ep == 4 && w.rank() > 1 && p.name.starts_with("experts."))
              CHECK(max(p.tensor.grad().abs()).item() == 0);
          }
          CHECK(w.recorder().count() > 5);
          test::check_same_traces(w);
        });
      }
}

TEST_CASE(
    "R6: a batch whose tokens are split over tp ranks has the losses and gradients of one rank") {
  constexpr std::int64_t B = 3, T = 4, C = 8;
  const Tensor x = random({B, T, C}, 1), dy = random({B, T, C}, 2);
  const auto run = [&](nn::MoE& m, const Tensor& in, const Tensor& cotangent, double* loss) {
    const RandomScope random({.seed = 3, .step = 1, .first_global_row = 5});
    Tape tape;
    const nn::MoeOutput out = m(in);
    *loss = out.loss.item();
    add(sum(mul(out.y, cotangent)), out.loss).backward();
  };
  struct Case {
    int ranks;
    Degrees degrees;
  };
  // Three sequences on two ranks: one is cut; on four or six: parts that begin inside a sequence.
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
          const nn::TokenScope scope_of_tokens(nn::TokenPart{B, T, first, count});
          const auto rows = [&](const Tensor& t) {
            return t.view({1, B * T, C}).narrow(1, first, count).contiguous();
          };
          double loss;
          run(m, rows(x), rows(dy), &loss);
          const Tensor all = Tensor::full({1}, loss, DType::f64);
          w.all().all_reduce(all).wait();
          CHECK(std::abs(all.item() - want_loss) < 1e-12);
          // What the log shows is each rank's mean over its tokens.
          const Tensor shown = nn::RouterStep(m).losses();
          w.all().all_reduce(shown).wait();
          CHECK(mismatch(div(shown, k.ranks), nn::RouterStep(whole).losses(), 1e-12) == "");
          const NamedTensors wanted = whole.named_parameters(), own = m.named_parameters();
          for (std::size_t i = 0; i < own.size(); ++i) {
            CAPTURE(own[i].name);
            const ParameterLayout& l = layout.at(own[i].name);
            CHECK(l.tp_partial == !l.expert);
            const Tensor g = own[i].tensor.grad();
            (l.expert ? mesh.edp() : mesh.tp()).all_reduce(g).wait();
            CHECK(mismatch(g, part(wanted[i].tensor.grad(), l.part), 1e-10) == "");
          }
        });
      }
}

TEST_CASE("R7: with the same data on all dp ranks, counts over all of them say the same as aux") {
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
        // Every rank's loss counts by its share of the tokens.
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

TEST_CASE("R9: ranks with different tokens move the expert bias alike, by the counts of all") {
  test::distributed_test(2, [](World& w) {
    const DeviceMesh mesh(w, {.ep = 2});
    nn::MoE m(4,
              {.experts = 4,
               .router = {.route = {.topk = 2, .score = RouterScore::sigmoid}, .expert_bias = true},
               .ffn = 4});
    shard_experts(m, mesh);
    // Together [2, 3, 2, 1], by neither rank alone.
    const Tensor own =
        w.rank() == 0 ? Tensor::of({0, 3, 1, 0}, {4}) : Tensor::of({2, 0, 1, 1}, {4});
    m.router.tokens_per_expert.copy_(own.to(DType::i64));
    (void)nn::update_expert_bias(m, 1e-3, sum_router_counts(mesh));
    CHECK(mismatch(m.router.expert_bias, Tensor::of({0, -1e-3, 0, 1e-3}, {4}), 1e-9) == "");
    CHECK(max(m.router.tokens_per_expert).item() == 0);
  });
}

}  // namespace weft::distributed
