// Runs with --fp8-weights: the bits of runs that store bf16 weights too, in less memory.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "weft/nn/fp8.h"
#include "weft/tests/examples/gpt_step.h"
#include "weft/tests/small_run.h"
#include "weft/tests/support.h"

namespace weft::examples::fp8_weights_test {
namespace {

using fp8::BackwardOverride;
using test::kRunKinds;
using test::RunKind;
using train::Fp8Recipe;

struct Run : test::SmallRun {
  Run(const RunKind& kind, bool alone, Fp8Recipe recipe = Fp8Recipe::current) : SmallRun(kind) {
    options.machine.dtype = DType::e4m3;
    options.machine.fp8_recipe = recipe;
    options.machine.fp8_weights = alone;
  }
  double peak() const { return values("peak_bytes").back(); }
  double predicted() const {
    return static_cast<double>(
        predict_peak_bytes(options, static_cast<int>(options.parallel.ranks), 0));
  }
};

std::vector<std::string> files(const Run& run, const char* part) {
  std::vector<std::string> contents;
  for (const std::string& name : io::find_checkpoint(run.options.out)->shards(part))
    contents.push_back(io::read_file(name));
  return contents;
}

// With --zero the states in a rank's file are those of its slices, which are others.
void check_same(const Run& a, const Run& b) {
  CHECK(a.values("loss") == b.values("loss"));
  CHECK(a.values("val_loss") == b.values("val_loss"));
  CHECK(files(a, "model") == files(b, "model"));
  if (!a.options.parallel.zero) CHECK(files(a, "optim") == files(b, "optim"));
}

void check_less(const Run& alone, const Run& plain) {
  check_same(alone, plain);
  CHECK(alone.peak() == alone.predicted());
  CHECK(alone.peak() < plain.peak());
}

}  // namespace

TEST_CASE("fp8 weights: a run has the bits of one with bf16 weights, and goes on from either") {
  for (const RunKind* kind : {&kRunKinds[0], &kRunKinds[2]})
    for (const Fp8Recipe recipe : {Fp8Recipe::current, Fp8Recipe::delayed, Fp8Recipe::block}) {
      CAPTURE(kind->name);
      CAPTURE(static_cast<int>(recipe));
      Run plain(*kind, false, recipe), alone(*kind, true, recipe);
      REQUIRE(plain.train(4) == 0);
      REQUIRE(alone.train(4) == 0);
      REQUIRE(plain.values("loss").size() == 4);
      check_less(alone, plain);
      Run turned(*kind, false, recipe);
      for (const bool now : {false, true}) {
        turned.options.machine.fp8_weights = now;
        REQUIRE(turned.train(now ? 4 : 2, now) == 0);
      }
      check_same(turned, plain);
    }
}

TEST_CASE("fp8 weights: ranks, backward in bf16, samples, offload") {
  using distributed::Overlap;
  struct Case {
    const char* what;
    int kind;
    void (*change)(GptOptions&);
  };
  constexpr Case kCases[] = {
      {"dp", 0, [](GptOptions& o) { o.parallel.ranks = 2; }},
      {"zero", 0, [](GptOptions& o) { o.parallel = {.ranks = 2, .zero = true}; }},
      {"zero, experts, states in fp8", 2,
       [](GptOptions& o) {
         o.parallel = {.ranks = 2, .ep = 2, .zero = true};
         o.optimizer.state_dtype = DType::e4m3;
       }},
      {"zero, three ranks, powers of two", 2,
       [](GptOptions& o) {
         o.parallel = {.ranks = 3, .zero = true};
         o.batch = 6;
         o.machine.fp8_recipe = Fp8Recipe::current_pow2;
       }},
      {"zero, delayed scales, experts", 2,
       [](GptOptions& o) {
         o.parallel = {.ranks = 2, .zero = true};
         o.machine.fp8_recipe = Fp8Recipe::delayed;
       }},
      {"zero, tp + sp", 0,
       [](GptOptions& o) { o.parallel = {.ranks = 4, .tp = 2, .sp = true, .zero = true}; }},
      {"tp + sp", 0,
       [](GptOptions& o) {
         o.parallel = {.ranks = 2, .tp = 2, .sp = true, .tp_overlap = Overlap::ring};
       }},
      {"tp, key heads that ranks share", 0,
       [](GptOptions& o) {
         o.parallel = {.ranks = 2, .tp = 2};
         o.machine.fp8_recipe = Fp8Recipe::delayed;
         o.model.arch = nn::Arch::llama;
         o.model.ffn = 64;
         o.model.kv_heads = 1;
       }},
      {"ep", 2, [](GptOptions& o) { o.parallel = {.ranks = 2, .ep = 2}; }},
      {"dequantized", 0,
       [](GptOptions& o) { o.machine.fp8_backward = BackwardOverride::dequantized; }},
      {"samples", 0, [](GptOptions& o) { o.run.sample_every = 1; }},
      {"sgd", 0, [](GptOptions& o) { o.optimizer.kind = optim::Kind::sgd; }},
  };
  for (const Case& c : kCases) {
    CAPTURE(c.what);
    Run plain(kRunKinds[c.kind], false), alone(kRunKinds[c.kind], true);
    for (Run* run : {&plain, &alone}) {
      run->options.micro_batch = 0;
      run->options.run.save_every = 1;
      c.change(run->options);
      REQUIRE(run->train(3) == 0);
    }
    check_less(alone, plain);
  }
}

TEST_CASE("fp8 weights: --zero goes on from any run, and any run from it") {
  Run whole(kRunKinds[2], false), turned(kRunKinds[2], false);
  struct Part {
    std::int64_t steps;
    bool alone, zero;
  };
  whole.options.parallel.ranks = turned.options.parallel.ranks = 2;
  REQUIRE(whole.train(8) == 0);
  for (const Part& p :
       {Part{2, false, false}, Part{4, true, true}, Part{6, true, false}, Part{8, true, true}}) {
    turned.options.machine.fp8_weights = p.alone;
    turned.options.parallel.zero = p.zero;
    REQUIRE(turned.train(p.steps, p.steps > 2) == 0);
  }
  CHECK(turned.values("loss") == whole.values("loss"));
  CHECK(turned.values("val_loss") == whole.values("val_loss"));
}

TEST_CASE("fp8 weights: masters in a file") {
  const test::TempFolder pages;
  Run plain(kRunKinds[0], false), alone(kRunKinds[0], true);
  for (Run* run : {&plain, &alone}) {
    run->options.offload = {.what = train::OffloadWhat::states, .folder = pages.path()};
    REQUIRE(run->train(3) == 0);
  }
  check_less(alone, plain);
}

TEST_CASE("fp8 weights: the model has its values after the run") {
  GptOptions o = Run(kRunKinds[0], true).options;
  GptTask gpt(o);
  const auto weights = nn::fp8_weights(gpt.model);
  CHECK(weights.size() == 8);
  const auto released = [&] { return weights[0].storage()->released; };
  {
    const train::Ranks ranks = train::Ranks::alone(o);
    train::TrainStep step(gpt.task(), o, ranks);
    CHECK(released());
    step.optimizer().restore_values();
    CHECK(!released());
    step.optimizer().release_values();
    CHECK(released());
  }
  CHECK(!released());
  CHECK(weights[0].to(DType::f32).abs().sum().item() > 0);
}

}  // namespace weft::examples::fp8_weights_test
