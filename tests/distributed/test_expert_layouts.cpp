// Whole models with experts spread over ranks, compared with one rank.
#include <doctest/doctest.h>

#include <array>
#include <map>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/reduce.h"
#include "weft/nn/router_step.h"
#include "weft/tests/expert_support.h"

namespace weft::distributed::expert_layouts_test {
namespace {

using nn::Balance;
using nn::Gpt;
using nn::GptConfig;
using nn::Router;
using nn::RouterConfig;
using nn::SumCounts;
using test::different_bits;
using test::Grid;
using test::mismatch;
using test::part;
using test::random;
using test::seeded;

constexpr std::int64_t kSequences = 8, kTokens = 6;

// Experts in two of three blocks and in the MTP depth, balanced by a loss or by a bias.
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

const Tensor kIds = random({kSequences, kTokens}, 1, DType::i32);
const Tensor kTargets = random({kSequences, kTokens}, 2, DType::i32);

struct Pass {
  double loss = 0;
  std::map<std::string, Tensor> grads, biases;
};

// One step over the sequences first ... first + count, weighted by their share of all sequences.
Pass step(Gpt& model, std::int64_t first, std::int64_t count, const SumCounts& reduce = {}) {
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

// This rank's part of the step, after the reduction of the gradients.
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

const Grid kGrids[] = {{2, {.ep = 2, .etp = 1}}, {4, {.ep = 4, .etp = 1}},
                       {4, {.ep = 2, .etp = 1}}, {2, {.ep = 1, .etp = 2}},
                       {4, {.ep = 2, .etp = 2}}, {8, {.ep = 4, .etp = 1}}};

}  // namespace

TEST_CASE("P2: loss, gradients and expert biases of every layout equal those of one rank") {
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
            CHECK(mismatch(got.grads.at(name), part(g, layout, name), 1e-12) == "");
          }
          for (const auto& [name, b] : want.biases)
            CHECK(different_bits(got.biases.at(name), b) == "");
        });
      }
  }
}

TEST_CASE("expert layouts: recomputing dispatches tokens again and changes no bit") {
  for (const nn::Recompute kind : {nn::Recompute::selective, nn::Recompute::full})
    test::distributed_test(2, [&](World& w) {
      GptConfig c = tiny(false);
      const Degrees degrees{.ep = 2};
      const Pass want = step(w, degrees, c, DType::f32);
      c.recompute = kind;
      const Pass got = step(w, degrees, c, DType::f32);
      CHECK(got.loss == want.loss);
      for (const auto& [name, g] : want.grads) CHECK(different_bits(got.grads.at(name), g) == "");
      test::check_same_traces(w);
    });
}

TEST_CASE("D7: a rank without a sequence takes part in the collectives") {
  const GptConfig c = tiny(false);
  Gpt whole = seeded(c, DType::f64);
  const Pass want = step(whole, 0, kSequences);
  for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather})
    test::distributed_test(2, [&](World& w) {
      const DeviceMesh mesh(w, {.ep = 2});
      Gpt model = seeded(c, DType::f64);
      const Layout layout = shard_experts(model, mesh, {.dispatcher = kind});
      const Pass got = w.rank() == 0 ? step(model, 0, kSequences) : step(model, kSequences, 0);
      CHECK(got.loss == doctest::Approx(w.rank() == 0 ? want.loss : 0).epsilon(1e-12));
      for (const auto& [name, g] : want.grads) {
        CAPTURE(name);
        const auto entry = layout.find(name);
        REQUIRE(got.grads.at(name).defined());
        if (entry != layout.end())
          CHECK(mismatch(got.grads.at(name), part(g, entry->second.spec), 1e-12) == "");
        else if (w.rank() == 0)
          CHECK(mismatch(got.grads.at(name), g, 1e-12) == "");
        else
          CHECK(max(got.grads.at(name).abs()).item() == 0);
      }
      test::check_same_traces(w);
    });
}

TEST_CASE("expert layouts: a rerun gives the same bits") {
  test::distributed_test(4, [](World& w) {
    const Degrees degrees{.ep = 2, .etp = 2};
    const Pass a = step(w, degrees, tiny(false), DType::f32);
    const Pass b = step(w, degrees, tiny(false), DType::f32);
    CHECK(a.loss == b.loss);
    for (const auto& [name, g] : a.grads) CHECK(different_bits(g, b.grads.at(name)) == "");
  });
}

TEST_CASE("expert layouts: experts on other ranks give the output bits of one rank") {
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

}  // namespace weft::distributed::expert_layouts_test
