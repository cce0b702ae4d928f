// Whole models under tensor, sequence and expert parallelism at once, held against one rank.
#include <doctest/doctest.h>

#include <map>

#include "weft/autograd/elementwise.h"
#include "weft/distributed/parallelize.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/gpt.h"
#include "weft/nn/router_step.h"
#include "weft/tests/expert_support.h"

namespace weft::distributed {
namespace {

using nn::Balance;
using nn::Gpt;
using nn::GptConfig;
using test::different_bits;
using test::Grid;
using test::mismatch;
using test::part;
using test::random;

constexpr std::int64_t kSequences = 4, kTokens = 6;
const Tensor kIds = random({kSequences, kTokens}, 1, DType::i32);
const Tensor kTargets = random({kSequences, kTokens}, 2, DType::i32);

GptConfig tiny(nn::Arch arch, bool by_bias, nn::Recompute recompute = nn::Recompute::none) {
  GptConfig c{.arch = arch,
              .layers = 2,
              .heads = 4,
              .dim = 16,
              .ffn = 24,
              .seq = kTokens,
              .vocab = 13,
              .recompute = recompute,
              .mtp = {.depths = 1},
              .moe = {.experts = 4,
                      .router = {.route = {.topk = 2}},
                      .ffn = 6,
                      .shared_ffn = 8,
                      .shared_gate = true,
                      .latent = 10}};
  nn::RouterConfig& r = c.moe.router;
  r.init = nn::Init::normal(0.5);
  if (by_bias) {
    r.route.score = RouterScore::sigmoid;
    r.expert_bias = true;
  } else {
    r.balance = {{Balance::sequence, 0.1}};  // aux is about the batch of one dp rank
    r.z_loss = 0.01;
    r.jitter = 0.1;
  }
  return c;
}

Gpt seeded(const GptConfig& c, DType dtype) {
  Gpt model(c);
  nn::init(model, 7);
  model.to(dtype);
  return model;
}

struct Pass {
  double loss = 0, aux = 0;  // sums over this rank's tokens
  std::map<std::string, Tensor> grads, biases;
};

Pass step(Gpt& model, std::int64_t first, std::int64_t count, const nn::Router::Reduce& reduce) {
  nn::RouterStep routers(model);
  const RandomScope random({.seed = 3, .first_global_row = static_cast<std::uint64_t>(first)});
  Tape tape;
  const nn::GptLosses losses =
      model.losses(kIds.narrow(0, first, count), kTargets.narrow(0, first, count));
  const Tensor total = losses.total();
  total.backward(Tensor::full({}, 1.0 / (kSequences * kTokens), total.dtype()));
  Pass p;
  p.loss = losses.main.loss.item();
  if (losses.aux) p.aux = losses.aux.item() * losses.main.count.item();
  for (const NamedTensor& t : model.named_parameters()) p.grads[t.name] = t.tensor.grad();
  (void)routers.finish(1e-2, reduce);
  for (const auto& [name, t] : model.state_dict())
    if (name.ends_with("expert_bias")) p.biases[name] = t.clone();
  return p;
}

Layout cut(Gpt& model, DeviceMesh& mesh, Dispatcher kind) {
  const bool sequence = mesh.tp().size() > 1;
  Layout layout = parallelize(model, mesh, gpt_plan(model.config, {.sequence = sequence}));
  for (const auto& [name, l] :
       shard_experts(model, mesh, {.dispatcher = kind, .sequence_parallel = sequence}))
    layout[name] = l;
  return layout;
}

const Grid kGrids[] = {{2, {.tp = 2, .ep = 2, .etp = 1}}, {2, {.tp = 2, .ep = 1, .etp = 2}},
                       {2, {.tp = 2, .ep = 1, .etp = 1}}, {4, {.tp = 2, .ep = 2, .etp = 1}},
                       {4, {.tp = 2, .ep = 2, .etp = 2}}, {4, {.tp = 2, .ep = 4, .etp = 1}},
                       {4, {.tp = 4, .ep = 2, .etp = 2}}, {8, {.tp = 2, .ep = 4, .etp = 2}}};

}  // namespace

TEST_CASE("P2: tensor, sequence and expert parallelism together give one rank's gradients") {
  for (const nn::Arch arch : {nn::Arch::llama, nn::Arch::gpt2})
    for (const bool by_bias : {false, true}) {
      const GptConfig c = tiny(arch, by_bias);
      Gpt whole = seeded(c, DType::f64);
      const Pass want = step(whole, 0, kSequences, {});
      for (const Grid& grid : kGrids)
        for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
          CAPTURE(by_bias);
          CAPTURE(grid.ranks);
          CAPTURE(grid.degrees.tp);
          CAPTURE(grid.degrees.ep);
          test::distributed_test(grid.ranks, [&](World& w) {
            DeviceMesh mesh(w, grid.degrees);
            Gpt model = seeded(c, DType::f64);
            const Layout layout = cut(model, mesh, kind);
            const std::int64_t count = kSequences / mesh.dp().size();
            const Pass got = step(model, mesh.dp().rank() * count, count, sum_router_counts(mesh));
            const Tensor sums = Tensor::of({got.loss / mesh.tp().size(), got.aux}, {2}, DType::f64);
            w.all().all_reduce(sums).wait();
            CHECK(sums.select(0, 0).item() == doctest::Approx(want.loss).epsilon(1e-10));
            CHECK(sums.select(0, 1).item() == doctest::Approx(want.aux).epsilon(1e-10));
            for (const auto& [name, g] : want.grads) {
              CAPTURE(name);
              const auto entry = layout.find(name);
              const ParameterLayout l =
                  entry == layout.end() ? ParameterLayout{.part = {g.shape(), {}}} : entry->second;
              const Tensor sum = got.grads.at(name);
              (l.expert ? mesh.edp() : mesh.dp_cp()).all_reduce(sum).wait();
              if (l.tp_partial) mesh.tp().all_reduce(sum).wait();
              CHECK(mismatch(sum, part(g, l.part), 1e-11) == "");
            }
            for (const auto& [name, b] : want.biases)
              CHECK(different_bits(got.biases.at(name), b) == "");
            test::check_same_traces(w);
          });
        }
    }
}

TEST_CASE("recomputed blocks change no bit of tensor, sequence and expert parallelism") {
  test::distributed_test(4, [](World& w) {
    DeviceMesh mesh(w, {.tp = 2, .ep = 2, .etp = 2});
    const auto pass = [&](nn::Recompute r) {
      Gpt model = seeded(tiny(nn::Arch::llama, false, r), DType::f32);
      cut(model, mesh, Dispatcher::all_to_all);
      return step(model, 2 * mesh.dp().rank(), 2, sum_router_counts(mesh));
    };
    const Pass want = pass(nn::Recompute::none);
    for (const nn::Recompute r : {nn::Recompute::selective, nn::Recompute::full}) {
      const Pass got = pass(r);
      CHECK(got.loss == want.loss);
      for (const auto& [name, g] : want.grads) {
        CAPTURE(name);
        CHECK(different_bits(got.grads.at(name), g) == "");
      }
    }
  });
}

}  // namespace weft::distributed
