// Fsdp against the sharded optimizer, which keeps all parameters and gradients.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/core/allocator.h"
#include "weft/distributed/fsdp.h"
#include "weft/distributed/sharded_optimizer.h"
#include "weft/tests/expert_support.h"
#include "weft/tests/parallel_support.h"

namespace weft::distributed::fsdp_test {
namespace {

using nn::GptConfig;

constexpr std::int64_t kRows = 16, kTokens = 6;

GptConfig small(bool tied) {
  return {.arch = tied ? nn::Arch::gpt2 : nn::Arch::llama,
          .layers = 3,
          .heads = 4,
          .dim = 16,
          .ffn = 24,
          .seq = kTokens,
          .vocab = 37,
          .tie = tied};
}

GptConfig moe() {
  GptConfig c = small(false);
  c.mtp.depths = 2;
  c.moe = {.experts = 4, .router = {.route = {.topk = 2}}, .ffn = 6, .shared_ffn = 8};
  c.moe.router.z_loss = 0.01;
  return c;
}

GptConfig with(GptConfig c, nn::Recompute recompute) {
  c.recompute = recompute;
  return c;
}

struct Case {
  int ranks;
  Degrees degrees = {};
  bool sequence = false;
};

/// How parameters and gradients are held.
struct How {
  const char* name;
  bool fsdp;
  std::int64_t depth = -1;
  bool overlap = true;
};
constexpr How kZero{"zero", false}, kZero3{"zero 3", true}, kZero2{"zero 2", true, 0},
    kSome{"two units", true, 2}, kBlocking{"zero 3, blocking", true, -1, false};

struct Outcome {
  std::vector<double> losses, norms;
  double parameter_norm = 0;
  std::vector<Tensor> parameters;
};

Outcome train(World& w, const Case& at, const How& how, const GptConfig& c, DType dtype,
              std::int64_t micros, int steps, std::string frozen = "") {
  DeviceMesh mesh(w, at.degrees);
  nn::Gpt model = test::seeded(c, dtype);
  const Layout layout = test::cut(model, mesh, at.sequence);
  for (NamedTensor& p : model.named_parameters())
    if (!frozen.empty() && p.name.starts_with(frozen)) p.tensor.set_requires_grad(false);
  const auto adam =
      make_optimizer(model, mesh, layout, optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1},
                     {.bucket_size = 300,
                      .overlap = how.overlap,
                      .shard = true,
                      .fsdp = how.fsdp,
                      .reshard_depth = how.depth});
  change_shard(model, [&](nn::Shard& s) {
    s.before_use = [&](const nn::Module& part) { adam->wait(part); };
  });
  Outcome out;
  const std::int64_t rows = kRows / mesh.dp().size(), each = rows / micros;
  for (int step = 0; step < steps; ++step) {
    const Tensor text = minimum(
        test::random({kRows, kTokens + 1}, 5 + static_cast<std::uint64_t>(step), DType::i32),
        static_cast<double>(c.vocab - 1));
    adam->zero_grad();
    double sum = 0;
    for (std::int64_t m = 0; m < micros; ++m) {
      const Tensor ids = text.narrow(0, mesh.dp().rank() * rows + m * each, each);
      Tape tape;
      const nn::GptLosses losses = model.losses(ids.narrow(1, 0, kTokens).contiguous(),
                                                ids.narrow(1, 1, kTokens).contiguous());
      const Tensor loss = losses.total();
      if (m + 1 == micros) adam->watch(tape);
      loss.backward(test::cotangent(loss, kRows * kTokens));
      sum += losses.main.loss.item();
    }
    const optim::GradClip clip = adam->finish(0.5);
    out.losses.push_back(sum);
    out.norms.push_back(clip.norm.item());
    adam->step(clip);
  }
  out.parameter_norm = adam->parameter_norm().item();
  adam->wait();
  adam->restore_values();
  out.parameters = test::copies(model.parameters());
  test::check_same_traces(w);
  return out;
}

void same(const Outcome& got, const Outcome& want) {
  CHECK(got.losses == want.losses);
  CHECK(test::same_bits(got.parameters, want.parameters));
  for (std::size_t i = 0; i < want.norms.size(); ++i)
    CHECK(got.norms[i] == doctest::Approx(want.norms[i]).epsilon(1e-14));
  CHECK(got.parameter_norm == doctest::Approx(want.parameter_norm).epsilon(1e-12));
}

const Case kDp2{2}, kDp4{4}, kTp{4, {.tp = 2}}, kSp{4, {.tp = 2}, true}, kEp{4, {.ep = 2}},
    kEpTp{8, {.tp = 2, .ep = 2, .etp = 1}, true}, kAllEp{2, {.ep = 2}};

}  // namespace

TEST_CASE("fsdp: stages 2 and 3 have the bits of the sharded optimizer") {
  using enum nn::Recompute;
  struct Model {
    const char* name;
    GptConfig config;
    std::vector<Case> cases;
  };
  const Model models[] = {{"gpt2, tied", small(true), {kDp2, kDp4, kTp, kSp}},
                          {"llama", small(false), {kDp2, kSp}},
                          {"llama, recomputed", with(small(false), full), {kDp2, kSp}},
                          {"llama, parts recomputed", with(small(false), selective), {kDp2}},
                          {"experts, mtp", moe(), {kDp2, kAllEp, kEp, kEpTp}},
                          {"experts, mtp, recomputed", with(moe(), full), {kEp}}};
  for (const Model& m : models)
    for (const Case& at : m.cases)
      test::distributed_test({at.ranks}, [&](World& w) {
        CAPTURE(std::string(m.name));
        CAPTURE(at.degrees.tp);
        CAPTURE(at.degrees.ep);
        for (const DType dtype : {DType::f32, DType::bf16}) {
          CAPTURE(name(dtype));
          const Outcome want = train(w, at, kZero, m.config, dtype, 1, 3);
          for (const How& how : {kZero3, kZero2, kSome, kBlocking}) {
            CAPTURE(std::string(how.name));
            same(train(w, at, how, m.config, dtype, 1, 3), want);
          }
        }
      });
}

TEST_CASE("fsdp: a rank of tp without rows of the vocabulary") {
  for (const Case& at : {Case{8, {.tp = 4}}, Case{16, {.tp = 4, .dp_replicate = 2}}})
    test::distributed_test({at.ranks}, [&](World& w) {
      GptConfig c = small(false);
      c.vocab = 9;  // 3 of 4 ranks have 3 rows each
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Outcome want = train(w, at, kZero, c, dtype, 1, 3);
        for (const How& how : {kZero3, kZero2, kSome, kBlocking}) {
          CAPTURE(std::string(how.name));
          same(train(w, at, how, c, dtype, 1, 3), want);
        }
      }
    });
}

TEST_CASE("fsdp: micro-batches are added in f32, the same way in every stage") {
  for (const Case& at : {kDp2, kSp, kEp})
    test::distributed_test({at.ranks}, [&](World& w) {
      const GptConfig c = at.degrees.ep > 1 ? moe() : small(true);
      const Outcome zero = train(w, at, kZero, c, DType::f64, 2, 2);
      const Outcome want = train(w, at, kZero3, c, DType::f64, 2, 2);
      CHECK(test::distance(want.parameters, zero.parameters) < 1e-9);
      for (std::size_t i = 0; i < want.norms.size(); ++i)
        CHECK(want.norms[i] == doctest::Approx(zero.norms[i]).epsilon(1e-11));
      for (const How& how : {kZero3, kZero2, kSome, kBlocking})
        same(train(w, at, how, c, DType::f64, 2, 2), want);
    });
}

TEST_CASE("fsdp: frozen parameters stay as they are") {
  for (const char* frozen : {"embed", "blocks.0", "blocks"})
    test::distributed_test({2}, [&](World& w) {
      CAPTURE(std::string(frozen));
      for (const auto recompute : {nn::Recompute::none, nn::Recompute::full}) {
        const GptConfig c = with(small(false), recompute);
        const Outcome want = train(w, kDp2, kZero, c, DType::f32, 1, 2, frozen);
        same(train(w, kDp2, kZero3, c, DType::f32, 1, 2, frozen), want);
      }
    });
}

TEST_CASE("fsdp: values written between steps are used, in any stage") {
  test::distributed_test({2, 4}, [](World& w) {
    const auto run = [&](const How& how) {
      nn::Gpt model = test::seeded(small(true), DType::bf16);
      const DeviceMesh mesh(w);
      const auto adam =
          make_optimizer(model, mesh, {}, optim::AdamWOptions{.lr = 1e-2},
                         {.shard = true, .fsdp = how.fsdp, .reshard_depth = how.depth});
      change_shard(model, [&](nn::Shard& s) {
        s.before_use = [&](const nn::Module& part) { adam->wait(part); };
      });
      const Tensor ids = test::random({2, kTokens}, 3, DType::i32);
      for (int step = 0; step < 3; ++step) {
        adam->release_values();
        adam->zero_grad();
        Tape tape;
        const Tensor loss = model.losses(ids, ids).total();
        adam->watch(tape);
        loss.backward(test::cotangent(loss, 12. * w.size()));
        adam->step(adam->finish(1));
        adam->wait();
        adam->restore_values();
        if (step == 1)
          for (const Tensor& p : model.parameters()) p.mul_(0.9);
      }
      return test::copies(model.parameters());
    };
    const auto want = run(kZero);
    for (const How& how : {kZero3, kZero2, kSome}) CHECK(test::same_bits(run(how), want));
  });
}

TEST_CASE("fsdp: a backward between that of watch() and finish() is refused") {
  for (const auto& [ranks, degrees] : {std::pair<int, Degrees>{2, {}}, {4, {.dp_replicate = 2}}})
    test::distributed_test(ranks, [degrees = degrees](World& w) {
      const auto run = [&](bool late) {
        nn::Gpt model = test::seeded(small(true), DType::f32);
        const DeviceMesh mesh(w, degrees);
        const auto adam = make_optimizer(model, mesh, {}, optim::AdamWOptions{.lr = 1e-2},
                                         {.shard = true, .fsdp = true});
        change_shard(model, [&](nn::Shard& s) {
          s.before_use = [&](const nn::Module& part) { adam->wait(part); };
        });
        const Tensor ids = test::random({2, kTokens}, 3 + w.rank(), DType::i32);
        const auto backward = [&](bool watched) {
          Tape tape;
          const Tensor loss = model.losses(ids, ids).total();
          if (watched) adam->watch(tape);
          loss.backward(test::cotangent(loss, 12. * w.size()));
        };
        if (late) {
          adam->zero_grad();
          backward(true);
          const std::string why = test::error_of([&] { backward(false); });
          CHECK(
              why.starts_with("ddp: no backward must run between that of watch() and finish(), "
                              "but one came to the gradient of "));
          CHECK(test::error_of([&] { adam->finish(1); }) == why);
        }
        adam->zero_grad();  // the next step works
        backward(false);
        backward(true);
        adam->step(adam->finish(1));
        adam->wait();
        adam->restore_values();
        return test::copies(model.parameters());
      };
      CHECK(test::same_bits(run(true), run(false)));
    });
}

TEST_CASE("fsdp: a model must say what it uses, and have no parameters of its own") {
  run_ranks(1, [](World& w) {
    const DeviceMesh mesh(w);
    test::Stack stack(1);
    CHECK(test::error_of([&] { Ddp(stack, mesh, {}, {.shard = true, .fsdp = true}); }) ==
          "fsdp: the model must call Shard::before_use, and Module does not");
    struct Own : nn::Module {
      Tensor scale = nn::make_parameter({3}, nn::Init::constant(1));
      unsigned shard_members() const override { return nn::Shard::kBeforeUse; }
      void visit(nn::Visitor& v) override { v("scale", scale); }
    } own;
    CHECK(test::error_of([&] { Ddp(own, mesh, {}, {.shard = true, .fsdp = true}); }) ==
          "fsdp: every parameter must be in a module below the model, got scale");
    nn::Gpt gpt(small(true));
    CHECK(test::error_of([&] { Ddp(gpt, mesh, {}, {.fsdp = true}); }) ==
          "ddp: fsdp needs shard, and does not exist yet with fp8_weights");
  });
}

}  // namespace weft::distributed::fsdp_test
