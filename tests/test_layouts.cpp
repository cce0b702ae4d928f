// The first step of whole models in every layout of two and four ranks, held against one rank: the
// loss, the norm and each gradient.
#include <doctest/doctest.h>

#include <cmath>

#include "weft/distributed/parallel_optimizer.h"
#include "weft/distributed/parallelize.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/gpt.h"
#include "weft/tests/expert_support.h"
#include "weft/tests/parallel_support.h"

namespace weft::distributed {
namespace {

using nn::GptConfig;

constexpr std::int64_t kSequences = 16, kTokens = 6;
constexpr double kCount = kSequences * kTokens;

GptConfig dense(bool tied) {
  GptConfig c;
  c.arch = tied ? nn::Arch::gpt2 : nn::Arch::llama;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = tied ? 4 : 2;
  c.dim = 16;
  c.ffn = 24;
  c.seq = kTokens;
  c.vocab = 13;  // does not divide
  c.tie = tied;
  c.mtp.depths = 1;
  return c;
}

GptConfig with_experts() {
  GptConfig c = dense(false);
  c.moe.experts = 4;
  c.moe.ffn = 6;
  c.moe.shared_ffn = 8;
  c.moe.router.route.topk = 2;
  c.moe.router.init = nn::Init::normal(0.5);
  c.moe.router.balance = {{nn::Balance::sequence, 0.1}};
  return c;
}

/// Sums of the head's loss and of all gradients over the micro-batches of some sequences.
double backward(const nn::Gpt& model, std::int64_t first, std::int64_t count, int micros,
                Ddp* ddp) {
  const Tensor ids = test::random({kSequences, kTokens}, 5, DType::i32);
  const Tensor targets = test::random({kSequences, kTokens}, 6, DType::i32);
  const std::int64_t each = count / micros;
  double sum = 0;
  for (int m = 0; m < micros; ++m) {
    Tape tape;
    const nn::GptLosses losses = model.losses(ids.narrow(0, first + m * each, each).clone(),
                                              targets.narrow(0, first + m * each, each).clone());
    const Tensor loss = losses.total();
    if (ddp && m + 1 == micros) ddp->watch(tape);
    loss.backward(test::cotangent(loss, kCount));
    sum += losses.main.loss.item() / kCount;
  }
  return sum;
}

struct Step {
  double loss = 0, norm = 0;
  NamedTensors gradients;
  StateDict after;  // weights after plain gradient descent
};

constexpr double kLr = 0.5;

Step one_rank(const GptConfig& c, DType dtype) {
  const nn::DeviceScope scope(kCpu, dtype);
  nn::Gpt model(c);
  nn::init(model, 7);
  Step s;
  s.loss = backward(model, 0, kSequences, 1, nullptr);
  for (const NamedTensor& p : model.named_parameters())
    s.gradients.push_back({p.name, p.tensor.grad().clone()});
  const optim::GradClip clip = optim::measure_clip(model.named_parameters(), 1);
  s.norm = clip.norm.item();
  optim::Sgd(model.named_parameters(), {.lr = kLr}).step(clip);
  s.after = model.state_dict();
  return s;
}

struct Case {
  int ranks;
  Degrees degrees;
  bool sequence = false;
};

double relative(double a, double b) { return std::abs(a - b) / std::abs(b); }

void compare(World& w, const Case& how, const GptConfig& c, DType dtype, bool shard, int micros,
             const Step& want) {
  const double limit = dtype == DType::f64 ? 1e-9 : 1e-5;
  DeviceMesh mesh(w, how.degrees);
  const nn::DeviceScope scope(kCpu, dtype);
  nn::Gpt model(c);
  nn::init(model, 7);
  Layout layout = parallelize(model, mesh, gpt_plan(c, {.sequence = how.sequence}));
  if (c.moe.experts > 0)
    for (const auto& [name, l] : shard_experts(model, mesh, {.sequence_parallel = how.sequence}))
      layout[name] = l;
  Ddp ddp(model, mesh, layout, {.bucket_size = 500, .shard = shard});
  const auto sgd = make_optimizer(ddp, optim::SgdOptions{.lr = kLr});
  const std::int64_t count = kSequences / mesh.dp().size();
  const Tensor loss = Tensor::full({1}, 0, DType::f64);
  const double own = backward(model, mesh.dp().rank() * count, count, micros, &ddp);
  if (mesh.tp().rank() == 0) loss.fill_(own);
  const optim::GradClip clip = ddp.finish(1);
  w.all().all_reduce(loss).wait();
  CHECK(relative(loss.item(), want.loss) < limit);
  CHECK(relative(clip.norm.item(), want.norm) < limit);
  const auto part_of = [&](const std::string& name, const Tensor& whole) {
    const auto found = layout.find(name);
    return found == layout.end() ? whole : test::part(whole, found->second.part);
  };
  const NamedTensors parameters = model.named_parameters();
  for (std::size_t i = 0; !shard && i < parameters.size(); ++i) {
    CAPTURE(parameters[i].name);
    const Tensor g = part_of(parameters[i].name, want.gradients[i].tensor);
    CHECK(test::distance({parameters[i].tensor.main_grad()}, {g}) < limit);
  }
  sgd->step(clip);
  sgd->wait();
  for (const NamedTensor& p : parameters) {
    CAPTURE(p.name);
    CHECK(test::distance({p.tensor}, {part_of(p.name, want.after.at(p.name))}) < limit);
  }
}

void compare_all(std::initializer_list<Case> cases, const GptConfig& c) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Step want = one_rank(c, dtype);
    for (const Case& how : cases) {
      CAPTURE(name(dtype));
      CAPTURE(how.ranks);
      CAPTURE(how.degrees.tp);
      CAPTURE(how.degrees.ep);
      CAPTURE(how.degrees.etp);
      CAPTURE(how.sequence);
      test::distributed_test(how.ranks, [&](World& w) {
        for (const bool shard : {false, true})
          for (const int micros : {1, 4}) compare(w, how, c, dtype, shard, micros, want);
      });
    }
  }
}

}  // namespace

TEST_CASE("layouts: dense models with tied and untied heads") {
  for (const bool tied : {true, false})
    compare_all({{2, {}},
                 {4, {}},
                 {2, {.tp = 2}},
                 {4, {.tp = 4}},
                 {2, {.tp = 2}, true},
                 {4, {.tp = 2}},
                 {4, {.tp = 2}, true}},
                dense(tied));
}

TEST_CASE("layouts: models with experts and a depth of multi-token prediction") {
  compare_all({{2, {}},
               {2, {.ep = 2}},
               {4, {.ep = 4}},
               {4, {.ep = 2}},
               {4, {.tp = 2, .ep = 2, .etp = 1}, true},
               {4, {.tp = 2, .ep = 2, .etp = 2}, true},
               {4, {.tp = 2, .ep = 4, .etp = 1}, true}},
              with_experts());
}

}  // namespace weft::distributed
