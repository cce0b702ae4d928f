// Whole models in every layout of two and four ranks, compared with one rank: loss, norm and each
// gradient of the first step, and twenty steps. test_session_layouts.cpp tests the trainer's
// session.
#include <doctest/doctest.h>

#include <cmath>
#include <type_traits>

#include "weft/distributed/parallel_optimizer.h"
#include "weft/nn/router_step.h"
#include "weft/tests/expert_support.h"
#include "weft/tests/parallel_support.h"

namespace weft::distributed::layouts_test {
namespace {

using nn::Arch;
using nn::Gpt;
using nn::GptConfig;

constexpr std::int64_t kSequences = 16, kTokens = 6;
constexpr double kCount = kSequences * kTokens, kBiasRate = 1e-2;

struct Model {
  const char* name;
  GptConfig config;
};

GptConfig dense(Arch arch, bool tied, std::int64_t key_heads = 4, int depths = 0) {
  return {.arch = arch,
          .layers = 2,
          .heads = 4,
          .kv_heads = key_heads,
          .dim = 16,
          .ffn = 24,
          .seq = kTokens,
          .vocab = 13,  // not divisible by any number of ranks
          .tie = tied,
          .mtp = {.depths = depths}};
}

GptConfig hybrid(GptConfig c) {
  c.pattern = "da";
  c.attention = nn::AttentionKind::mla;
  c.kv_heads = 0;
  c.delta = {.key_heads = 4, .value_heads = 8, .key_dim = 3, .value_dim = 5, .conv = 3};
  return c;
}

enum class By : std::uint8_t { loss, bias };  // the means of balancing the experts

GptConfig experts(Arch arch, bool tied, RouterScore score, By by, std::int64_t key_heads = 4) {
  GptConfig c = dense(arch, tied, key_heads, 1);
  c.moe = {.experts = 4, .router = {.route = {.topk = 2}}, .ffn = 6, .shared_ffn = 8};
  nn::RouterConfig& r = c.moe.router;
  r.init = nn::Init::normal(0.5);
  r.route.score = score;
  r.expert_bias = by == By::bias;
  if (by == By::loss) {
    r.balance = {{nn::Balance::sequence, 0.1}};
    r.z_loss = 0.01;
  }
  return c;
}

// As Qwen: heads wider than dim / heads, biases of queries, keys and values only.
GptConfig wide_heads(GptConfig c) {
  c.head_size = 6;
  c.attn_bias = nn::AttentionBias::qkv;
  return c;
}

const std::vector<Model>& dense_models() {
  static const std::vector<Model> models{
      {"gpt2, tied, mtp", dense(Arch::gpt2, true, 4, 1)},
      {"gpt2, untied", dense(Arch::gpt2, false)},
      {"llama, tied, wide heads", wide_heads(dense(Arch::llama, true))},
      {"llama, untied, two key heads, mtp", dense(Arch::llama, false, 2, 1)},
      {"llama, delta net and latent attention, mtp", hybrid(dense(Arch::llama, false, 4, 1))}};
  return models;
}

// The first two run for twenty steps.
const std::vector<Model>& expert_models() {
  using enum RouterScore;
  static const std::vector<Model> models{
      {"llama, two key heads, loss", experts(Arch::llama, false, softmax, By::loss, 2)},
      {"gpt2, tied, bias", experts(Arch::gpt2, true, sigmoid, By::bias)},
      {"llama, untied, loss", experts(Arch::llama, false, sigmoid, By::loss)},
      {"llama, tied, bias", experts(Arch::llama, true, sigmoid, By::bias)},
      {"gpt2, tied, loss", experts(Arch::gpt2, true, sigmoid, By::loss)},
      {"llama, delta net and latent attention, bias",
       hybrid(experts(Arch::llama, false, sigmoid, By::bias))}};
  return models;
}

struct Case {
  int ranks;
  Degrees degrees;
  bool sequence = false;
};
using Cases = std::vector<Case>;

/// How a layout runs.
struct How {
  bool shard;
  int micros;
};

/// Relative tolerances; 0 skips the comparison.
struct Tolerance {
  double losses, norms, gradients, weights;
};

template <class Options>
struct Training {
  Options options;
  int steps;
  double max_norm;
  Tolerance tolerance;
};

struct Run {
  std::vector<double> losses, norms;  ///< per step
  NamedTensors gradients;             ///< of the last step
  StateDict state;                    ///< after it
};

// Accumulates gradients over the micro-batches of some sequences; returns the main head's loss.
double backward(const Gpt& model, int step, std::int64_t first, std::int64_t count, int micros,
                Ddp* ddp) {
  const Tensor text =
      test::random({kSequences, kTokens + 1}, 5 + static_cast<std::uint64_t>(step), DType::i32);
  const std::int64_t each = count / micros;
  double sum = 0;
  for (int m = 0; m < micros; ++m) {
    const Tensor rows = text.narrow(0, first + m * each, each);
    Tape tape;
    const nn::GptLosses losses = model.losses(rows.narrow(1, 0, kTokens).contiguous(),
                                              rows.narrow(1, 1, kTokens).contiguous());
    const Tensor loss = losses.total();
    if (ddp && m + 1 == micros) ddp->watch(tape);
    loss.backward(test::cotangent(loss, kCount));
    sum += losses.main.loss.item() / kCount;
  }
  return sum;
}

template <class Options>
Run one_rank(const GptConfig& c, DType dtype, const Training<Options>& training) {
  using Optimizer =
      std::conditional_t<std::is_same_v<Options, optim::SgdOptions>, optim::Sgd, optim::AdamW>;
  Gpt model = test::seeded(c, dtype);
  Optimizer optimizer(model.named_parameters(), training.options);
  nn::RouterStep routers(model);
  Run run;
  for (int step = 0; step < training.steps; ++step) {
    optimizer.zero_grad();
    run.losses.push_back(backward(model, step, 0, kSequences, 1, nullptr));
    const optim::GradClip clip = optim::measure_clip(optimizer.parameters(), training.max_norm);
    run.norms.push_back(clip.norm.item());
    optimizer.step(clip);
    (void)routers.finish(kBiasRate);
  }
  for (const NamedTensor& p : model.named_parameters())
    run.gradients.push_back({p.name, p.tensor.grad()});
  run.state = model.state_dict();
  return run;
}

template <class Options>
void compare(World& w, const Case& at, const How& how, const GptConfig& c, DType dtype,
             const Training<Options>& training, const Run& want) {
  const Tolerance& limit = training.tolerance;
  DeviceMesh mesh(w, at.degrees);
  Gpt model = test::seeded(c, dtype);
  const Layout layout = test::cut(model, mesh, at.sequence);
  // Several buckets, which start and end within layers.
  Ddp ddp(model, mesh, layout, {.bucket_size = 500, .shard = how.shard});
  const auto optimizer = make_optimizer(ddp, training.options);
  nn::RouterStep routers(model);
  const std::int64_t count = kSequences / mesh.dp().size();
  for (std::size_t step = 0; step < want.losses.size(); ++step) {
    CAPTURE(step);
    optimizer->wait();
    ddp.zero_grad();
    const double own =
        backward(model, static_cast<int>(step), mesh.dp().rank() * count, count, how.micros, &ddp);
    const Tensor loss = Tensor::full({1}, own, DType::f64);
    const optim::GradClip clip = ddp.finish(training.max_norm);
    mesh.dp().all_reduce(loss).wait();
    CHECK(std::abs(loss.item() / want.losses[step] - 1) < limit.losses);
    CHECK(std::abs(clip.norm.item() / want.norms[step] - 1) < limit.norms);
    optimizer->step(clip);
    (void)routers.finish(kBiasRate, sum_router_counts(mesh));
  }
  optimizer->wait();
  const NamedTensors parameters = model.named_parameters();
  for (std::size_t i = 0; limit.gradients > 0 && !how.shard && i < parameters.size(); ++i) {
    CAPTURE(parameters[i].name);
    const Tensor g = test::part(want.gradients[i].tensor, layout, parameters[i].name);
    // Of some, f32 in every model, the gradient of each micro-batch is rounded to f32.
    const bool rounds = dtype == DType::f64 && parameters[i].tensor.dtype() == DType::f32;
    CHECK(test::distance({parameters[i].tensor.main_grad()}, {g}) <
          (rounds ? 1e-6 : limit.gradients));
  }
  const StateDict state = model.state_dict();
  if (limit.weights > 0)
    for (const auto& [name, whole] : want.state) {
      CAPTURE(name);
      CHECK(test::distance({state.at(name)}, {test::part(whole, layout, name)}) < limit.weights);
    }
}

template <class Options>
void compare_all(const Cases& cases, const std::vector<How>& hows, const Model& m, DType dtype,
                 const Training<Options>& training) {
  const Run want = one_rank(m.config, dtype, training);
  for (const Case& at : cases)
    test::distributed_test(at.ranks, [&](World& w) {
      CAPTURE(std::string(m.name));
      CAPTURE(name(dtype));
      CAPTURE(at.degrees.tp);
      CAPTURE(at.degrees.ep);
      CAPTURE(at.degrees.etp);
      CAPTURE(at.sequence);
      for (const How& how : hows) {
        CAPTURE(how.shard);
        CAPTURE(how.micros);
        compare(w, at, how, m.config, dtype, training, want);
      }
    });
}

void first_step(const Cases& cases, const std::vector<Model>& models) {
  for (const Model& m : models)
    for (const auto& [dtype, limit] : {std::pair{DType::f64, 1e-9}, {DType::f32, 1e-5}})
      compare_all(cases, {{false, 1}, {false, 4}, {true, 1}, {true, 4}}, m, dtype,
                  Training<optim::SgdOptions>{{.lr = 0.5}, 1, 1., {limit, limit, limit, limit}});
}

// In bf16 another order of sums changes the last of eight bits of an activation.
void first_step_in_bf16(const Cases& cases, const Model& m) {
  compare_all(cases, {{false, 4}, {true, 1}}, m, DType::bf16,
              Training<optim::SgdOptions>{{.lr = 0.5}, 1, 1., {1e-4, 2e-3, 0.02, 0.01}});
}

const Cases kExpertCases{{2, {.ep = 2}},
                         {4, {.ep = 4}},
                         {4, {.ep = 2}},
                         {4, {.tp = 2, .ep = 2, .etp = 1}, true},
                         {4, {.tp = 2, .ep = 2, .etp = 2}, true}};

template <class Options>
void twenty_steps(const Options& options, const Tolerance& tolerance) {
  for (std::size_t i = 0; i < 2; ++i)
    compare_all(kExpertCases, {{false, 1}, {true, 1}, {true, 4}}, expert_models()[i], DType::f32,
                Training<Options>{options, 20, 0.5, tolerance});
}

}  // namespace

TEST_CASE("layouts: dense models with tied and untied heads") {
  first_step({{2, {}},
              {4, {}},
              {2, {.tp = 2}},
              {4, {.tp = 4}},
              {2, {.tp = 2}, true},
              {4, {.tp = 2}},
              {4, {.tp = 2}, true}},
             dense_models());
}

TEST_CASE("layouts: models with experts and one MTP depth") {
  Cases cases = kExpertCases;
  cases.push_back({2, {}});
  cases.push_back({2, {.tp = 2}, true});
  cases.push_back({4, {.tp = 2, .ep = 4, .etp = 1}, true});
  first_step(cases, expert_models());
}

TEST_CASE("layouts: models with experts in bf16") {
  Cases cases = kExpertCases;
  cases.push_back({2, {.tp = 2}, true});
  first_step_in_bf16(cases, expert_models()[0]);
  first_step_in_bf16({{2, {.tp = 2}}, {4, {.tp = 2}, true}, {4, {.tp = 4}}}, dense_models()[0]);
}

TEST_CASE("layouts: losses, norms and weights of 20 SGD steps of models with experts") {
  twenty_steps(optim::SgdOptions{.lr = 0.1}, {1e-5, 1e-4, 0, 1e-5});
}

TEST_CASE("layouts: losses and norms of 20 AdamW steps of models with experts") {
  twenty_steps(optim::AdamWOptions{.lr = 1e-3}, {1e-4, 1e-3, 0, 0});
}

}  // namespace weft::distributed::layouts_test
