// Whole runs with --dtype f16 and its loss scale: losses of f32, skipped steps, memory, resumption,
// ranks, states in f16 under ZeRO, and the emulated GPU with and without a graph.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/distributed/shard_files.h"
#include "weft/tests/small_run.h"
#include "weft/tests/support.h"

namespace weft::examples::f16_run_test {
namespace {

using test::close_losses;
using test::kRunKinds;
using test::RunKind;
using test::RunLayout;

struct Run : test::SmallRun {
  explicit Run(const RunKind& kind, const RunLayout& layout = {}, DType dtype = DType::f16)
      : SmallRun(kind, layout) {
    options.machine.dtype = dtype;
  }
};

struct Trained {
  double loss, first_norm;  // the mean loss of the last 10 of 60 steps; norm of the first gradient
};
Trained trained(const RunKind& kind, DType dtype) {
  Run run(kind, {}, dtype);
  run.options.run.eval_every = run.options.run.save_every = 0;
  run.options.optimizer.lr = 3e-3;
  REQUIRE(run.train(60) == 0);
  const std::vector<double> losses = run.values("loss");
  REQUIRE(losses.size() == 60);
  CHECK(losses.back() < 0.6 * losses.front());
  return {std::accumulate(losses.end() - 10, losses.end(), 0.0) / 10,
          run.values("grad_norm").at(0)};
}

}  // namespace

TEST_CASE("f16 runs: 60 steps end within 0.5 % of f32's loss") {
  for (const RunKind& kind : {kRunKinds[0], kRunKinds[2]}) {
    const Trained f32 = trained(kind, DType::f32), f16 = trained(kind, DType::f16);
    CAPTURE(kind.name);
    CAPTURE(f32.loss);
    CAPTURE(f16.loss);
    CHECK(std::fabs(f16.loss - f32.loss) < 0.005 * f32.loss);
    // AdamW would not notice gradients that are still multiplied by the scale.
    CHECK(f16.first_norm == doctest::Approx(f32.first_norm).epsilon(0.01));
  }
}

TEST_CASE("f16 runs: the loss scale starts at 65536 without a flag, and can be left out") {
  Run run(kRunKinds[0]), none(kRunKinds[0]), wide(kRunKinds[0], {}, DType::f32);
  none.options.optimizer.loss_scale = 0;
  REQUIRE(run.train(2) == 0);
  REQUIRE(none.train(2) == 0);
  REQUIRE(wide.train(2) == 0);
  CHECK(run.values("loss_scale").at(0) == 65536);
  CHECK(none.values("loss_scale").empty());
  CHECK(wide.values("loss_scale").empty());
}

TEST_CASE("f16 runs: a step that overflows is skipped and counted, on all ranks alike") {
  std::vector<double> scales;
  for (const RunLayout& layout :
       {RunLayout{}, RunLayout{.ranks = 2}, RunLayout{.ranks = 2, .zero = true}}) {
    Run run(kRunKinds[0], layout);
    run.options.micro_batch = 0;
    run.options.optimizer.loss_scale = 0x1p32;
    REQUIRE(run.train(16) == 0);
    double scale = 0x1p32, skipped = 0;
    for (const io::Json& row : run.rows()) {
      if (!row.find("loss_scale")) continue;
      CHECK(row.at("loss_scale").as_double() == scale);
      if (row.at("grad_norm").is_null()) {
        ++skipped;
        scale /= 2;
      }
      CHECK(row.at("skipped_steps").as_double() == skipped);
    }
    CHECK(skipped > 4);
    CHECK(skipped < 16);
    // One rank rounds other sums to f16, so it may overflow in another step.
    if (layout.zero) CHECK(run.values("loss_scale") == scales);
    scales = run.values("loss_scale");
  }
}

TEST_CASE("f16 runs: predicted memory is the real peak, and a resumed run has the same bits") {
  for (const RunKind& kind : kRunKinds) {
    CAPTURE(kind.name);
    Run whole(kind);
    REQUIRE(whole.train(4) == 0);
    const std::vector<double> losses = whole.values("loss");
    REQUIRE(losses.size() == 4);
    CHECK(losses[3] < losses[0]);
    CHECK(whole.values("peak_bytes").back() ==
          static_cast<double>(predict_peak_bytes(whole.options, 0, 0)));
    Run parts(kind);
    REQUIRE(parts.train(2) == 0);
    REQUIRE(parts.train(4, true) == 0);
    CHECK(parts.values("loss") == losses);
    CHECK(parts.values("val_loss") == whole.values("val_loss"));
    CHECK(parts.files() == whole.files());
    // Another program reads the weights in any dtype.
    const distributed::ShardFiles files(io::find_checkpoint(whole.options.out)->shards("model"));
    for (const auto& [name, tensor] : files.state_dict())
      if (name.ends_with("norm.weight")) CHECK(tensor.dtype() == DType::f16);
    nn::Gpt wide(whole.options.model);
    wide.load_state_dict(files.state_dict());
    CHECK(wide.embed.weight.dtype() == DType::f32);
    CHECK(test::different_bits(wide.embed.weight.detach().to(DType::f16),
                               files.state_dict().at("embed.weight")) == "");
  }
}

TEST_CASE("f16 runs: ranks agree with one rank, also with states in f16") {
  for (const DType state : {DType::f32, DType::f16}) {
    const auto losses = [&](const RunKind& kind, const RunLayout& layout) {
      Run run(kind, layout);
      run.options.micro_batch = 0;
      run.options.optimizer.state_dtype = state;
      REQUIRE(run.train(6) == 0);
      return run.values("loss");
    };
    const std::vector<double> dense = losses(kRunKinds[0], {});
    for (const RunLayout& l : {RunLayout{.ranks = 2}, RunLayout{.ranks = 2, .zero = true},
                               RunLayout{.ranks = 2, .tp = 2}})
      CHECK(close_losses(losses(kRunKinds[0], l), dense, 1e-3));
    const std::vector<double> sparse = losses(kRunKinds[2], {});
    for (const RunLayout& l :
         {RunLayout{.ranks = 2, .ep = 2}, RunLayout{.ranks = 2, .ep = 2, .zero = true}})
      CHECK(close_losses(losses(kRunKinds[2], l), sparse, 5e-3));
  }
}

TEST_CASE("f16 runs: states in f16 move between layouts, sharded and not") {
  const RunLayout sharded{.ranks = 2, .zero = true}, plain{.ranks = 2};
  for (const bool to_plain : {true, false}) {
    Run run(kRunKinds[0], to_plain ? sharded : plain);
    run.options.micro_batch = 0;
    run.options.optimizer.state_dtype = DType::f16;
    Run whole(kRunKinds[0], to_plain ? sharded : plain);
    whole.options.micro_batch = 0;
    whole.options.optimizer.state_dtype = DType::f16;
    REQUIRE(whole.train(6) == 0);
    REQUIRE(run.train(4) == 0);
    run.options.parallel.zero = !to_plain;
    REQUIRE(run.train(6, true) == 0);
    CHECK(close_losses(run.values("loss"), whole.values("loss"), 1e-3));
  }
}

TEST_CASE("f16 runs: on a GPU as on the CPU, with and without a graph") {
  if (cuda::device_count() == 0) return;
  for (const RunKind& kind : {kRunKinds[0], kRunKinds[2]}) {
    CAPTURE(kind.name);
    const auto run = [&](const char* device, bool graph, DType dtype, double scale) {
      Run r(kind, {}, dtype);
      r.options.machine.device = device;
      r.options.machine.graph = graph;
      r.options.optimizer.loss_scale = scale;
      r.options.optimizer.loss_scale_steps = 2;
      REQUIRE(r.train(8) == 0);
      return std::tuple{r.values("loss"), r.values("loss_scale"), r.values("skipped_steps")};
    };
    const auto eager = run("cuda", false, DType::f16, 0x1p26);
    CHECK(std::get<2>(eager).back() > 0);
    CHECK(std::get<2>(eager).back() < 8);
    CHECK(run("cuda", true, DType::f16, 0x1p26) == eager);
    CHECK(close_losses(std::get<0>(run("cuda", false, DType::f16, 256)),
                       std::get<0>(run("cpu", false, DType::f16, 256)), 5e-3));
    if (!kind.experts)
      CHECK(run("cuda", true, DType::e4m3, 1024) == run("cuda", false, DType::e4m3, 1024));
  }
}

}  // namespace weft::examples::f16_run_test
