// Whole runs with --dtype fp8: predicted memory, exact repetition and resumption, ranks.
#include <doctest/doctest.h>

#include <vector>

#include "weft/core/error.h"
#include "weft/tests/small_run.h"
#include "weft/tests/support.h"

namespace weft::examples::fp8_run_test {
namespace {

using test::close_losses;
using test::error_of;
using test::kRunKinds;
using test::RunKind;
using test::RunLayout;
using train::Fp8Recipe;

struct Run : test::SmallRun {
  Run(const RunKind& kind, Fp8Recipe recipe, const RunLayout& layout = {})
      : SmallRun(kind, layout) {
    options.machine.dtype = DType::e4m3;
    options.machine.fp8_recipe = recipe;
  }
};

}  // namespace

TEST_CASE("fp8 runs: predicted memory is the real peak, and a resumed run has the same bits") {
  for (const RunKind& kind : kRunKinds)
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
  using distributed::Overlap;
  for (const Fp8Recipe recipe : {Fp8Recipe::current, Fp8Recipe::delayed}) {
    const auto losses = [&](const RunKind& kind, const train::ParallelOptions& layout) {
      Run run(kind, recipe);
      run.options.micro_batch = 0;
      run.options.parallel = layout;
      REQUIRE(run.train(4) == 0);
      CHECK(
          run.values("peak_bytes").back() ==
          static_cast<double>(predict_peak_bytes(run.options, static_cast<int>(layout.ranks), 0)));
      return run.values("loss");
    };
    const std::vector<double> dense = losses(kRunKinds[0], {});
    CHECK(close_losses(losses(kRunKinds[0], {.ranks = 2}), dense, 0.02));
    CHECK(close_losses(losses(kRunKinds[0], {.ranks = 2, .zero = true}), dense, 0.02));
    const std::vector<double> off = losses(kRunKinds[0], {.ranks = 2, .tp = 2, .sp = true});
    CHECK(close_losses(off, dense, 0.02));
    for (const Overlap form : {Overlap::ring, Overlap::pipeline})
      CHECK(losses(kRunKinds[0], {.ranks = 2, .tp = 2, .sp = true, .tp_overlap = form}) == off);
    const std::vector<double> experts = losses(kRunKinds[2], {});
    CHECK(close_losses(losses(kRunKinds[2], {.ranks = 2, .ep = 2}), experts, 0.02));
    constexpr auto kCodes = nn::TokenForm::fp8;
    const std::vector<double> rounded = losses(kRunKinds[2], {.ep_dtype = kCodes});
    CHECK(rounded != experts);
    CHECK(close_losses(losses(kRunKinds[2], {.ranks = 2, .ep = 2, .ep_dtype = kCodes}), rounded,
                       0.02));
  }
}

TEST_CASE("fp8 runs: a model that does not fit is refused before the run") {
  Run run(kRunKinds[0], Fp8Recipe::current);
  run.options.model.ffn = 40;
  CHECK(error_of([&] { run.train(1); }) ==
        "fp8: blocks.0.mlp.up must have widths that are multiples of 16, got 32 inputs and 40 "
        "outputs");
}

}  // namespace weft::examples::fp8_run_test
