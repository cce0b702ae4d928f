// Gradient values that are exactly 0 are counted alike in every layout, and a parameter that gets
// no gradient on any rank adds none.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/tests/expert_support.h"
#include "weft/tests/parallel_support.h"

namespace weft::distributed::zero_counts_test {
namespace {

constexpr std::int64_t kRows = 4, kTokens = 6, kDim = 16, kVocab = 37;
// The ids are below the first number, so that the embeddings of the rest get gradients of 0.
constexpr std::int64_t kUsed = 9, kSpare = 11;

// A tensor that nothing uses, and one that the first rows use.
struct More : nn::Module {
  Tensor unused, sometimes;
  More() {
    unused = Tensor::ones({kSpare}).set_requires_grad();
    sometimes = Tensor::ones({kSpare}).set_requires_grad();
  }
  void visit(nn::Visitor& v) override {
    v("unused", unused, nn::Init::constant(1));
    v("sometimes", sometimes, nn::Init::constant(1));
  }
};

struct Partly : nn::Module {
  nn::Gpt gpt;
  More more;
  /// Few tokens choose one of many experts: some experts get none, and gradients of 0.
  explicit Partly(std::int64_t experts)
      : gpt({.arch = nn::Arch::llama,
             .layers = 2,
             .heads = 4,
             .dim = kDim,
             .ffn = 24,
             .seq = kTokens,
             .vocab = kVocab,
             .tie = false,
             .moe = {.experts = experts,
                     .router = {.route = {.topk = 1, .pre_softmax = true}},
                     .ffn = 6}}) {
    nn::init(*this, 7);
    to(DType::f64);
  }
  void visit(nn::Visitor& v) override {
    v("gpt", gpt);
    v("more", more);
  }
  unsigned shard_members() const override { return nn::Shard::kBeforeUse; }  // called below
};

struct Layouts {
  int ranks;
  Degrees degrees = {};
  bool sequence = false;
  std::int64_t experts = 0;
};

enum class Held : std::uint8_t { whole, zero, fsdp };

// By step: the first uses `sometimes`, and from the second on a norm is frozen.
std::vector<double> counts(World& w, const Layouts& at, Held held) {
  DeviceMesh mesh(w, at.degrees);
  Partly model(at.experts);
  Layout layout;
  const nn::GptConfig& config = model.gpt.config;
  for (auto& [name, l] : parallelize(model.gpt, mesh, gpt_plan(config, {.sequence = at.sequence})))
    layout["gpt." + name] = std::move(l);
  const auto sgd = make_optimizer(model, mesh, layout, optim::SgdOptions{.lr = 0},
                                  {.bucket_size = 300,
                                   .shard = held != Held::whole,
                                   .fsdp = held == Held::fsdp,
                                   .count_zeros = true});
  const std::int64_t rows = kRows / mesh.dp().size();
  const Tensor ids = minimum(test::random({kRows, kTokens + 1}, 5, DType::i32), kUsed - 1.0)
                         .narrow(0, mesh.dp().rank() * rows, rows);
  std::vector<double> out;
  for (int step = 0; step < 3; ++step) {
    if (step == 1) model.gpt.norm.weight.set_requires_grad(false);
    sgd->zero_grad();
    Tape tape;
    sgd->wait(model.gpt);
    Tensor loss =
        model.gpt
            .losses(ids.narrow(1, 0, kTokens).contiguous(), ids.narrow(1, 1, kTokens).contiguous())
            .total();
    sgd->wait(model.more);
    // The square of 0 has a gradient of 0.
    if (step == 0 && mesh.dp().rank() == 0)
      loss = add(loss, sum(square(mul(model.more.sometimes, Tensor::zeros({kSpare}, DType::f64)))));
    sgd->watch(tape);
    loss.backward();
    const optim::GradClip clip = sgd->finish();
    out.push_back(sgd->zero_gradients().item());
    sgd->step(clip);
  }
  sgd->wait();
  return out;
}

}  // namespace

TEST_CASE("zero counts: parameters without a gradient add none, in every layout") {
  constexpr std::int64_t kExperts = 32;
  for (const std::int64_t experts : {std::int64_t{0}, kExperts}) {
    std::vector<double> want;
    run_ranks(1,
              [&](World& w) { want = counts(w, {.ranks = 1, .experts = experts}, Held::whole); });
    REQUIRE(want.size() == 3);
    // Each of the two layers has fewer tokens than experts.
    const std::int64_t idle = experts ? 2 * (kExperts - kRows * kTokens) * 3 * 6 * kDim : 0;
    CHECK(want[1] >= (kVocab - kUsed) * kDim + idle);
    CHECK(want[0] == want[1] + kSpare);
    CHECK(want[2] == want[1]);
    std::vector<Layouts> all{{2}, {2, {.tp = 2}}, {4}, {4, {.tp = 2}}, {4, {.tp = 2}, true}};
    all.push_back({4, {.dp_replicate = 2}});
    if (experts)
      all = {{2},
             {2, {.ep = 2}},
             {4, {.ep = 2}},
             {4, {.tp = 2, .etp = 2}},
             {4, {.tp = 2, .ep = 4, .etp = 1}, true},
             {4, {.ep = 2, .dp_replicate = 2}}};
    for (Layouts at : all) {
      at.experts = experts;
      test::distributed_test({at.ranks}, [&](World& w) {
        CAPTURE(at.ranks);
        CAPTURE(at.degrees.tp);
        CAPTURE(at.degrees.ep);
        CAPTURE(at.degrees.etp);
        CAPTURE(at.degrees.dp_replicate);
        CAPTURE(at.sequence);
        CAPTURE(experts);
        for (const Held held : {Held::whole, Held::zero, Held::fsdp}) {
          CAPTURE(static_cast<int>(held));
          CHECK(counts(w, at, held) == want);
        }
      });
    }
  }
}

TEST_CASE("zero counts: without any gradient there are none") {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& w) {
      const DeviceMesh mesh(w);
      test::Stack model(1);
      const auto sgd =
          make_optimizer(model, mesh, {}, optim::SgdOptions{.lr = 1}, {.count_zeros = true});
      sgd->zero_grad();
      Tape tape;
      sgd->watch(tape);
      (void)sgd->finish();
      CHECK(sgd->zero_gradients().item() == 0);
    });
}

}  // namespace weft::distributed::zero_counts_test
