// Whole models with combined tensor, sequence and expert parallelism, compared with one rank.
#include <doctest/doctest.h>

#include <map>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/distributed/ddp.h"
#include "weft/nn/router_step.h"
#include "weft/tests/expert_support.h"

namespace weft::distributed::expert_tensor_test {
namespace {

using nn::Balance;
using nn::Gpt;
using nn::GptConfig;
using test::cut;
using test::different_bits;
using test::Grid;
using test::mismatch;
using test::part;
using test::random;
using test::seeded;

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
    r.balance = {{Balance::sequence, 0.1}};  // aux is computed over the batch of one dp rank
    r.z_loss = 0.01;
    r.jitter = 0.1;
  }
  return c;
}

// Both presets with both ways of balance, and experts of which each rank has a part of gate and up
// with its biases.
std::vector<GptConfig> forms() {
  std::vector<GptConfig> all;
  for (const nn::Arch arch : {nn::Arch::llama, nn::Arch::gpt2})
    for (const bool by_bias : {false, true}) all.push_back(tiny(arch, by_bias));
  all.push_back(tiny(nn::Arch::gpt2, false));
  all.back().activation = Activation::geglu;
  all.back().positions = nn::Positions::none;
  return all;
}

struct Pass {
  double loss = 0, aux = 0;  // sums over this rank's tokens
  std::map<std::string, Tensor> grads, biases;
};

Pass step(Gpt& model, std::int64_t first, std::int64_t count, const nn::SumCounts& reduce) {
  nn::RouterStep routers(model);
  const RandomScope random({.seed = 3, .first_global_row = static_cast<std::uint64_t>(first)});
  Tape tape;
  const nn::GptLosses losses =
      model.losses(kIds.narrow(0, first, count), kTargets.narrow(0, first, count));
  const Tensor total = losses.total();
  total.backward(Tensor::full({}, 1.0 / (kSequences * kTokens), total.dtype()));
  Pass p;
  p.loss = losses.main.loss.item();
  if (losses.aux.defined()) p.aux = losses.aux.item() * losses.main.count.item();
  for (const NamedTensor& t : model.named_parameters()) p.grads[t.name] = t.tensor.grad();
  (void)routers.finish(1e-2, reduce);
  for (const auto& [name, t] : model.state_dict())
    if (name.ends_with("expert_bias")) p.biases[name] = t.clone();
  return p;
}

const Grid kGrids[] = {{2, {.tp = 2, .ep = 2, .etp = 1}}, {2, {.tp = 2, .ep = 1, .etp = 2}},
                       {2, {.tp = 2, .ep = 1, .etp = 1}}, {4, {.tp = 2, .ep = 2, .etp = 1}},
                       {4, {.tp = 2, .ep = 2, .etp = 2}}, {4, {.tp = 2, .ep = 4, .etp = 1}},
                       {4, {.tp = 4, .ep = 2, .etp = 2}}, {8, {.tp = 2, .ep = 4, .etp = 2}}};

}  // namespace

TEST_CASE("P2: tensor, sequence and expert parallelism together give one rank's gradients") {
  for (const GptConfig& c : forms()) {
    Gpt whole = seeded(c, DType::f64);
    const Pass want = step(whole, 0, kSequences, {});
    for (const Grid& grid : kGrids)
      for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
        CAPTURE(whole.config.moe.router.expert_bias);
        CAPTURE(grid.ranks);
        CAPTURE(grid.degrees.tp);
        CAPTURE(grid.degrees.ep);
        test::distributed_test(grid.ranks, [&](World& w) {
          DeviceMesh mesh(w, grid.degrees);
          Gpt model = seeded(c, DType::f64);
          const Layout layout = cut(model, mesh, true, kind);
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
                entry == layout.end() ? ParameterLayout{.spec = {g.shape(), {}}} : entry->second;
            const Tensor sum = got.grads.at(name);
            (l.expert ? mesh.edp() : mesh.dp_cp()).all_reduce(sum).wait();
            if (l.tp_partial) mesh.tp().all_reduce(sum).wait();
            CHECK(mismatch(sum, part(g, l.spec), 1e-11) == "");
          }
          for (const auto& [name, b] : want.biases)
            CHECK(different_bits(got.biases.at(name), b) == "");
          test::check_same_traces(w);
        });
      }
  }
}

TEST_CASE("expert tensor: recomputed blocks change no bit") {
  test::distributed_test(4, [](World& w) {
    DeviceMesh mesh(w, {.tp = 2, .ep = 2, .etp = 2});
    const auto pass = [&](nn::Recompute r) {
      Gpt model = seeded(tiny(nn::Arch::llama, false, r), DType::f32);
      cut(model, mesh, true);
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

TEST_CASE("expert tensor: padding has no effect wherever the tokens of a batch are split") {
  // One row of two sequences. One rank holds the last twelve tokens, which are padding.
  constexpr std::int64_t kRow = 48, kPadding = 12;
  const std::vector<std::int32_t> ends{0, 20, kRow - kPadding, kRow};
  const std::vector<std::uint8_t> is_padding{0, 0, 1};
  const Tensor ids = random({1, kRow}, 1, DType::i32), targets = random({1, kRow}, 2, DType::i32);
  const auto step = [&](World& w, const Degrees& degrees, const GptConfig& c) {
    DeviceMesh mesh(w, degrees);
    Gpt model = seeded(c, DType::f64);
    Ddp ddp(model, mesh, cut(model, mesh, degrees.tp > 1));
    Tape tape;
    const nn::GptLosses losses =
        model.losses(ids, targets, nn::Packing::of(ends, kRow, kCpu, is_padding));
    const Tensor total = losses.total();
    ddp.watch(tape);
    total.backward(Tensor::full({}, 1.0 / (kRow - kPadding), DType::f64));
    const Tensor aux = losses.aux.detach().view({1}).clone();
    mesh.tp().all_reduce(aux).wait();
    return std::pair{aux.item(), ddp.finish().norm.item()};
  };
  for (const int kind : {0, 1, 2}) {
    GptConfig c = tiny(nn::Arch::llama, true);
    c.seq = kRow;
    c.mtp = {};
    c.moe.router.expert_bias = false;
    if (kind == 0)
      c.moe.router.z_loss = 0.1;
    else
      c.moe.router.balance = {{kind == 1 ? Balance::aux : Balance::sequence, 0.5}};
    std::pair<double, double> want;
    test::distributed_test(1, [&](World& w) { want = step(w, {}, c); });
    if (test::launched_world()) return;  // a launched world has only one size
    run_ranks(2, [&](World& w) {
      CAPTURE(kind);
      const auto got = step(w, {.tp = 2}, c);
      CHECK(got.first == doctest::Approx(want.first).epsilon(1e-12));
      CHECK(got.second == doctest::Approx(want.second).epsilon(1e-12));
    });
  }
}

TEST_CASE("expert tensor: ranks reduce buckets of any size at the same point of backward") {
  // Ranks hold unequal shards of the head, and the experts' gradients arrive out of order.
  for (const std::int64_t bucket : {192, 256, 320, 384, 448, 512, 576, 1024})
    test::distributed_test(4, [&](World& w) {
      CAPTURE(bucket);
      GptConfig c = tiny(nn::Arch::llama, true);
      c.vocab = 21;
      DeviceMesh mesh(w, {.tp = 4, .ep = 2, .etp = 1});
      Gpt model = seeded(c, DType::f32);
      Ddp ddp(model, mesh, cut(model, mesh, true), {.bucket_size = bucket});
      Tape tape;
      const Tensor loss = model.losses(kIds, kTargets).total();
      ddp.watch(tape);
      loss.backward();
      ddp.finish();
      test::check_same_traces(w);
    });
}

}  // namespace weft::distributed::expert_tensor_test
