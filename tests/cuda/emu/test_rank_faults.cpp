// Training over an emulated NCCL that fails: a checkpoint never has what a failed collective left.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <string>
#include <string_view>

#include "weft/core/random.h"
#include "weft/cuda/emu/control.h"
#include "weft/distributed/nccl_world.h"
#include "weft/io/checkpoint.h"
#include "weft/nn/linear.h"
#include "weft/tests/examples/gpt_step.h"
#include "weft/tests/silence.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/train/trainer.h"

namespace weft::rank_faults_test {
namespace {

using emu::NcclCall;
using emu::NcclFault;

// The failing call: the `number`th of `name` with at least `bytes`, on the rank of GPU `device`.
struct Plan {
  int device = 0;
  std::string_view name;
  std::int64_t bytes = 0;
  int number = 1;
};
Plan plan;
std::atomic<int> seen{0};

struct FaultScope {
  FaultScope(const Plan& p, NcclFault (*decide)(const NcclCall&)) {
    plan = p;
    seen = 0;
    emu::nccl_fault = decide;
  }
  ~FaultScope() { emu::nccl_fault = nullptr; }
  FaultScope(const FaultScope&) = delete;
};

bool is_planned(const NcclCall& c) {
  return c.device == plan.device && c.name == plan.name && c.bytes >= plan.bytes &&
         ++seen == plan.number;
}

constexpr std::int64_t kRows = 24;

data::TensorDataset points() {
  const Tensor x = Tensor::empty({kRows, 8}), classes = Tensor::empty({kRows}, DType::i32);
  normal_(x, {5, 0, 0});
  for (std::int64_t i = 0; i < kRows; ++i)
    classes.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % 4);
  return {x, classes};
}

// Trains four steps on two ranks and saves each; returns the error and the step of the newest
// checkpoint.
struct Outcome {
  std::string error;
  std::int64_t saved = 0;
};
Outcome train(const std::string& out, bool zero) {
  train::Options o{.out = out, .steps = 4, .batch = 8};
  o.machine.device = "cuda";
  o.parallel.backend = train::Backend::nccl;
  o.parallel.ranks = 2;
  o.parallel.zero = zero;
  o.run.save_every = 1;
  // A save in the background is complete only when all ranks agree on it after the next step.
  o.run.async_save = train::AsyncSave::off;
  const test::Silence silence;
  const data::TensorDataset training = points();
  Outcome outcome;
  outcome.error = test::error_of([&] {
    train::run_on_ranks(o, [&](const train::Ranks& ranks) {
      nn::Linear model(8, 4);
      train::Trainer trainer(
          model, o,
          [&](const data::Batch& b) { return train::classify(model(b.inputs), b.targets); }, ranks);
      return trainer.fit(training);
    });
  });
  if (const auto found = io::find_checkpoint(out)) outcome.saved = found->step;
  return outcome;
}

// One step of a GPT with experts on two ranks; their errors.
std::array<std::string, 2> errors_of_expert_step() {
  examples::GptOptions o;
  o.model.layers = 1;
  o.model.heads = 2;
  o.model.dim = 16;
  o.model.seq = 8;
  o.model.vocab = 37;
  o.model.moe.experts = 4;
  o.model.moe.ffn = 16;
  o.batch = 4;
  o.machine.device = "cuda";
  o.parallel.backend = train::Backend::nccl;
  o.parallel.ep = 2;
  std::array<std::string, 2> errors;
  test::error_of([&] {
    distributed::run_ranks(2, [&](distributed::World& host) {
      errors[static_cast<std::size_t>(host.rank())] = test::error_of([&] {
        const Device gpu{Device::Kind::cuda, static_cast<std::int16_t>(host.rank())};
        const auto gpus = distributed::nccl_world(host, gpu);
        const train::Ranks ranks(*gpus, host, gpu, o);
        examples::GptStep gpt(o, ranks);
        gpt.step(1, {Tensor::zeros({2, 8}, DType::i32), Tensor::zeros({2, 8}, DType::i32), {}});
      });
    });
  });
  return errors;
}

}  // namespace

TEST_CASE("rank faults: the host does not go on with token counts that did not come") {
  const FaultScope faults({.name = "ncclAllGather", .bytes = 4 * 8}, [](const NcclCall& c) {
    return is_planned(c) ? NcclFault::error : NcclFault::none;
  });
  for (const std::string& error : errors_of_expert_step())
    CHECK(error == "rank 0: nccl: remote process exited or there was a network error");
}

TEST_CASE("rank faults: a step whose gradients were aborted is not saved") {
  const test::TempFolder folder;
  for (const bool zero : {false, true})
    for (const int device : {0, 1}) {
      CAPTURE(zero);
      CAPTURE(device);
      // Gradients of the second step; the peer of the aborted rank ends with wrong sums and no
      // error.
      const FaultScope faults(
          {.device = device,
           .name = zero ? "ncclReduceScatter" : "ncclAllReduce",
           .bytes = 36 * 4,
           .number = 2},
          [](const NcclCall& c) { return is_planned(c) ? NcclFault::error : NcclFault::none; });
      const Outcome got = train(folder / message("{}{}", zero, device), zero);
      CHECK(got.error ==
            message("rank {}: nccl: remote process exited or there was a network error", device));
      CHECK(got.saved == 1);
    }
  CHECK(train(folder / "well", false).saved == 4);
}

}  // namespace weft::rank_faults_test
