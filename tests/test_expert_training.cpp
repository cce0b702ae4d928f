// Twenty steps of models whose experts are spread over ranks, held against one rank.
#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/distributed/parallelize.h"
#include "weft/distributed/shard_experts.h"
#include "weft/distributed/sharded_optimizer.h"
#include "weft/nn/gpt.h"
#include "weft/nn/router_step.h"
#include "weft/tests/expert_support.h"

namespace weft::distributed {
namespace {

using nn::Gpt;
using nn::GptConfig;
using test::Grid;
using test::part;
using test::random;

constexpr std::int64_t kSequences = 16, kTokens = 6;
constexpr int kSteps = 20;

GptConfig tiny(bool by_bias) {
  GptConfig c{.arch = by_bias ? nn::Arch::gpt2 : nn::Arch::llama,
              .layers = 2,
              .heads = 4,
              .dim = 16,
              .ffn = 24,
              .seq = kTokens,
              .vocab = 13,
              .mtp = {.depths = 1},
              .moe = {.experts = 4, .router = {.route = {.topk = 2}}, .ffn = 6, .shared_ffn = 8}};
  nn::RouterConfig& r = c.moe.router;
  r.init = nn::Init::normal(0.5);
  if (by_bias) {
    r.route.score = RouterScore::sigmoid;
    r.expert_bias = true;
  } else {
    r.balance = {{nn::Balance::sequence, 0.1}};
    r.z_loss = 0.01;
  }
  return c;
}

struct Run {
  std::vector<double> losses, norms;
  StateDict state;
};

// Sums of gradients over micro-batches; the loss over all of them.
double gradients(const Gpt& model, int step, std::int64_t first, std::int64_t count, int micros,
                 Ddp* ddp) {
  const Tensor ids =
      random({kSequences, kTokens + 1}, 5 + static_cast<std::uint64_t>(step), DType::i32);
  double loss = 0;
  const std::int64_t each = count / micros;
  for (int i = 0; i < micros; ++i) {
    const Tensor rows = ids.narrow(0, first + i * each, each);
    Tape tape;
    const nn::GptLosses l = model.losses(rows.narrow(1, 0, kTokens).contiguous(),
                                         rows.narrow(1, 1, kTokens).contiguous());
    const Tensor total = l.total();
    if (ddp && i + 1 == micros) ddp->watch(tape);
    total.backward(Tensor::full({}, 1.0 / (kSequences * kTokens), total.dtype()));
    loss += l.main.loss.item();
  }
  return loss / (kSequences * kTokens);
}

template <class Optimizer, class Options>
Run one_rank(const GptConfig& c, const Options& options) {
  Gpt model(c);
  nn::init(model, 7);
  Optimizer optimizer(model.named_parameters(), options);
  nn::RouterStep routers(model);
  Run run;
  for (int step = 0; step < kSteps; ++step) {
    run.losses.push_back(gradients(model, step, 0, kSequences, 1, nullptr));
    const optim::GradClip clip = optim::measure_clip(optimizer.parameters(), 0.5);
    run.norms.push_back(clip.norm.item());
    optimizer.step(clip);
    optimizer.zero_grad();
    (void)routers.finish(1e-2);
  }
  run.state = model.state_dict();
  return run;
}

struct How {
  bool zero = false;
  int micros = 1;
};

template <class Optimizer, class Options>
Run on_ranks(World& w, const Degrees& degrees, const GptConfig& c, const Options& options,
             const How& how, Layout* layout) {
  DeviceMesh mesh(w, degrees);
  const bool sequence = mesh.tp().size() > 1;
  Gpt model(c);
  nn::init(model, 7);
  *layout = parallelize(model, mesh, gpt_plan(c, {.sequence = sequence}));
  for (const auto& [name, l] : shard_experts(model, mesh, {.sequence_parallel = sequence}))
    (*layout)[name] = l;
  Ddp ddp(model, mesh, *layout, {.bucket_size = 500, .shard = how.zero});
  std::optional<ShardedOptimizer> sharded;
  std::optional<Optimizer> plain;
  if (how.zero)
    sharded.emplace(ddp, options);
  else
    plain.emplace(model.named_parameters(), options);
  nn::RouterStep routers(model);
  const std::int64_t count = kSequences / mesh.dp().size();
  Run run;
  for (int step = 0; step < kSteps; ++step) {
    if (sharded) sharded->wait();
    ddp.zero_grad();
    const Tensor loss = Tensor::full(
        {1}, gradients(model, step, mesh.dp().rank() * count, count, how.micros, &ddp), DType::f64);
    mesh.dp().all_reduce(loss).wait();
    run.losses.push_back(loss.item());
    const optim::GradClip clip = ddp.finish(0.5);
    run.norms.push_back(clip.norm.item());
    if (sharded)
      sharded->step(clip);
    else
      plain->step(clip);
    (void)routers.finish(1e-2, sum_router_counts(mesh));
  }
  if (sharded) sharded->wait();
  run.state = model.state_dict();
  return run;
}

double distance(const Tensor& got, const Tensor& want) {
  const Tensor off = sub(got.to(DType::f64), want.to(DType::f64));
  const Tensor all = want.to(DType::f64);
  return std::sqrt(sum(mul(off, off)).item() / sum(mul(all, all)).item());
}

const Grid kGrids[] = {{2, {.ep = 2, .etp = 1}},
                       {4, {.ep = 4, .etp = 1}},
                       {4, {.ep = 2, .etp = 1}},
                       {4, {.tp = 2, .ep = 2, .etp = 1}},
                       {4, {.tp = 2, .ep = 2, .etp = 2}}};

template <class Optimizer, class Options>
void compare(const Options& options, double loss_tolerance, double weight_tolerance) {
  for (const bool by_bias : {false, true}) {
    const GptConfig c = tiny(by_bias);
    const Run want = one_rank<Optimizer>(c, options);
    for (const Grid& grid : kGrids)
      for (const How& how : {How{false, 1}, How{true, 1}, How{true, 4}}) {
        CAPTURE(by_bias);
        CAPTURE(grid.ranks);
        CAPTURE(grid.degrees.tp);
        CAPTURE(grid.degrees.ep);
        CAPTURE(how.zero);
        CAPTURE(how.micros);
        test::distributed_test(grid.ranks, [&](World& w) {
          Layout layout;
          const Run got = on_ranks<Optimizer>(w, grid.degrees, c, options, how, &layout);
          for (std::size_t i = 0; i < want.losses.size(); ++i) {
            CAPTURE(i);
            CHECK(std::abs(got.losses[i] / want.losses[i] - 1) < loss_tolerance);
            CHECK(std::abs(got.norms[i] / want.norms[i] - 1) < 10 * loss_tolerance);
          }
          if (weight_tolerance == 0) return;
          for (const auto& [name, t] : want.state) {
            CAPTURE(name);
            const auto entry = layout.find(name);
            const Tensor own = entry == layout.end() ? t : part(t, entry->second.part);
            CHECK(distance(got.state.at(name), own) < weight_tolerance);
          }
        });
      }
  }
}

}  // namespace

TEST_CASE("20 SGD steps over ranks: losses, norms and weights of one rank") {
  compare<optim::Sgd>(optim::SgdOptions{.lr = 0.1}, 1e-5, 1e-5);
}

TEST_CASE("20 AdamW steps over ranks: losses of one rank") {
  compare<optim::AdamW>(optim::AdamWOptions{.lr = 1e-3}, 1e-4, 0);
}

}  // namespace weft::distributed
