// Whole runs with --dtype fp8: predicted memory, exact repetition and resumption, ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/examples/common/gpt_program.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/metrics.h"
#include "weft/tests/silence.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::examples::fp8_run_test {
namespace {

using test::error_of;
using train::Fp8Recipe;

struct Kind {
  const char* name;
  bool experts;
  nn::Recompute recompute = nn::Recompute::none;
};
constexpr Kind kKinds[] = {{"dense", false},
                           {"dense, recomputed", false, nn::Recompute::full},
                           {"experts and MTP", true, nn::Recompute::selective}};

struct Run {
  test::TempFolder folder;
  GptOptions options;

  Run(const Kind& kind, Fp8Recipe recipe) {
    std::string text;
    for (int i = 0; i < 2000; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 23);
    io::write_file(folder / "text", text);
    options.data.files = {folder / "text"};
    options.out = folder / "out";
    nn::GptConfig& m = options.model;
    m.layers = m.heads = 2;
    m.dim = 32;
    m.seq = 16;
    m.vocab = 256;
    m.recompute = kind.recompute;
    if (kind.experts) {
      m.arch = nn::Arch::llama;
      m.ffn = 48;
      m.mtp.depths = 1;
      m.moe.experts = 4;
      m.moe.ffn = 16;
      m.moe.router.capacity_factor = 1;
    }
    options.batch = 4;
    options.micro_batch = 2;
    options.steps = 4;
    options.run.log_every = 1000;
    options.run.eval_every = 2;
    options.run.save_every = 2;
    options.data.val_fraction = 0.05;
    options.machine.dtype = DType::e4m3;
    options.machine.fp8_recipe = recipe;
    options.machine.threads = 1;
  }
  int train(std::int64_t steps, bool resume = false) {
    const test::Silence silence;
    options.steps = steps;
    options.optimizer.schedule = optim::Schedule::Kind::constant;
    options.optimizer.warmup = 0;
    options.run.resume = resume;
    return train_gpt(options);
  }
  std::vector<double> values(const char* key) const {
    std::vector<double> out;
    for (const io::Json& row : io::read_metrics(options.out + "/metrics.jsonl"))
      if (const io::Json* v = row.find(key)) out.push_back(v->as_double());
    return out;
  }
  std::string files() const {
    const io::Checkpoint last = *io::find_checkpoint(options.out);
    return io::read_file(last.shards("model").at(0)) + io::read_file(last.shards("optim").at(0));
  }
};

}  // namespace

TEST_CASE("fp8 runs: predicted memory is the real peak, and a resumed run has the same bits") {
  for (const Kind& kind : kKinds)
    for (const Fp8Recipe recipe : {Fp8Recipe::current, Fp8Recipe::delayed, Fp8Recipe::block}) {
      CAPTURE(kind.name);
      CAPTURE(static_cast<int>(recipe));
      Run whole(kind, recipe);
      REQUIRE(whole.train(4) == 0);
      const std::vector<double> losses = whole.values("loss");
      REQUIRE(losses.size() == 4);
      CHECK(losses[3] < losses[0]);
      CHECK(whole.values("peak_bytes").back() ==
            static_cast<double>(predict_peak_bytes(whole.options, 0, 0)));
      Run parts(kind, recipe);
      REQUIRE(parts.train(2) == 0);
      REQUIRE(parts.train(4, true) == 0);
      CHECK(parts.values("loss") == losses);
      CHECK(parts.values("val_loss") == whole.values("val_loss"));
      CHECK(parts.files() == whole.files());
    }
}

TEST_CASE("fp8 runs: ranks agree with one rank within the rounding of FP8") {
  for (const Fp8Recipe recipe : {Fp8Recipe::current, Fp8Recipe::delayed}) {
    const auto losses = [&](const Kind& kind, std::int64_t ranks, std::int64_t tp, std::int64_t ep,
                            bool zero) {
      Run run(kind, recipe);
      run.options.micro_batch = 0;
      run.options.parallel.ranks = ranks;
      run.options.parallel.tp = tp;
      run.options.parallel.sp = tp > 1;
      run.options.parallel.ep = ep;
      run.options.parallel.zero = zero;
      REQUIRE(run.train(4) == 0);
      return run.values("loss");
    };
    const auto close = [](const std::vector<double>& a, const std::vector<double>& b) {
      for (std::size_t i = 0; i < a.size(); ++i)
        if (!(std::fabs(a[i] - b.at(i)) < 0.02 * b[i])) return false;
      return a.size() == b.size();
    };
    const std::vector<double> dense = losses(kKinds[0], 0, 1, 1, false);
    CHECK(close(losses(kKinds[0], 2, 1, 1, false), dense));
    CHECK(close(losses(kKinds[0], 2, 1, 1, true), dense));
    CHECK(close(losses(kKinds[0], 2, 2, 1, false), dense));
    CHECK(close(losses(kKinds[2], 2, 1, 2, false), losses(kKinds[2], 0, 1, 1, false)));
  }
}

TEST_CASE("fp8 runs: a model that does not fit is refused before the run") {
  Run run(kKinds[0], Fp8Recipe::current);
  run.options.model.ffn = 40;
  CHECK(error_of([&] { run.train(1); }) ==
        "fp8: blocks.0.mlp.up must have widths that are multiples of 16, got 32 inputs and 40 "
        "outputs");
}

}  // namespace weft::examples::fp8_run_test
