// Whole runs of train_gpt with --fsdp.
#include <doctest/doctest.h>

#include "weft/tests/small_run.h"

namespace weft::test::fsdp_run_test {
namespace {

const RunLayout kAlone{}, kFsdp{.ranks = 2, .fsdp = true}, kZero{.ranks = 2, .zero = true},
    kTp{.ranks = 2, .tp = 2}, kFsdpTp{.ranks = 4, .tp = 2, .fsdp = true},
    kFsdpEp{.ranks = 2, .ep = 2, .fsdp = true};

void set(SmallRun& run, const RunLayout& l) {
  train::ParallelOptions& p = run.options.parallel;
  p.ranks = l.ranks;
  p.tp = l.tp;
  p.sp = l.tp > 1;
  p.ep = l.ep;
  p.zero = l.zero;
  p.fsdp = l.fsdp;
  if (run.options.model.moe.experts > 0) p.sp = l.tp > 1;
}

}  // namespace

TEST_CASE("fsdp runs: have the losses of --zero, and evaluate, bit for bit") {
  for (const RunKind& kind : kRunKinds) {
    CAPTURE(std::string(kind.name));
    const auto run = [&](const RunLayout& l) {
      SmallRun r(kind, l);
      r.options.micro_batch = 0;
      REQUIRE(r.train(4) == 0);
      return std::pair{r.values("loss"), r.values("val_loss")};
    };
    const auto want = run(kZero), got = run(kFsdp);
    CHECK(got.first == want.first);
    CHECK(got.second == want.second);
    CHECK(got.second.size() == 2);
  }
}

TEST_CASE("fsdp runs: checkpoints go on in any layout, and those of any layout with --fsdp") {
  for (const bool experts : {false, true}) {
    const RunKind& kind = kRunKinds[experts ? 2 : 0];
    SmallRun whole(kind);
    whole.options.model.moe.router.capacity_factor = 0;
    REQUIRE(whole.train(4) == 0);
    const std::vector<double> want = whole.values("loss");
    const RunLayout& many = experts ? kFsdpEp : kFsdpTp;
    struct Change {
      RunLayout from, to;
    };
    for (const Change& c : {Change{kFsdp, kAlone}, Change{kAlone, kFsdp}, Change{kFsdp, kZero},
                            Change{kTp, kFsdp}, Change{many, kTp}, Change{kZero, many}}) {
      SmallRun run(kind, c.from);
      run.options.model.moe.router.capacity_factor = 0;
      REQUIRE(run.train(2) == 0);
      set(run, c.to);
      REQUIRE(run.train(4, true) == 0);
      CHECK(close_losses(run.values("loss"), want, 1e-4));
    }
  }
}

TEST_CASE("fsdp runs: a file of weights starts a run, and the best ones are kept") {
  SmallRun whole(kRunKinds[0]);
  REQUIRE(whole.train(2) == 0);
  const io::Checkpoint last = *io::find_checkpoint(whole.options.out);
  const auto start = [&](const RunLayout& l) {
    SmallRun r(kRunKinds[0], l);
    r.options.micro_batch = 0;
    r.options.run.weights = last.shards("model").at(0);
    r.options.run.keep_best = true;
    REQUIRE(r.train(2) == 0);
    CHECK(io::find_checkpoint(r.options.out + "/best").has_value());
    return r.values("loss");
  };
  CHECK(start(kFsdp) == start(kZero));
}

TEST_CASE("fsdp runs: options that contradict it") {
  const auto refused = [](const auto& change) {
    SmallRun r(kRunKinds[0], kFsdp);
    change(r.options);
    return test::error_of([&] {
      r.options.check();
      r.train(1);
    });
  };
  CHECK(refused([](examples::GptOptions& o) {
          o.machine.dtype = DType::e4m3;
          o.machine.fp8_weights = true;
        }) == "--fp8-weights: does not exist yet with --fsdp; use --zero");
  CHECK(
      refused([](examples::GptOptions& o) { o.parallel.dp_replicate = 3; }) ==
      "mesh: dp_replicate must divide dp and the data parallelism of experts, world size / (etp * "
      "ep * pp); got world size 2, dp 2, tp 1, cp 1, pp 1, ep 1, etp 1, dp_replicate 3");
}

}  // namespace weft::test::fsdp_run_test
