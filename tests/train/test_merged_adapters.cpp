// Merged adapters are in no state_dict(), so that a run which trains them would save nothing.
#include <doctest/doctest.h>

#include "weft/autograd/reduce.h"
#include "weft/nn/linear.h"
#include "weft/nn/lora.h"
#include "weft/tests/silence.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/train/trainer.h"

namespace weft::train::merged_adapters_test {
namespace {

data::TensorDataset points() {
  const Tensor x = Tensor::empty({24, 3}), classes = Tensor::zeros({24}, DType::i32);
  normal_(x, {5, 0, 0});
  return {x, classes};
}

/// What a run says that merges adapters before it starts, or while it evaluates.
std::string error_of_run(bool at_start) {
  const test::Silence silence;
  const test::TempFolder folder;
  Options o{.out = folder / "run", .steps = 2, .batch = 12};
  o.optimizer.warmup = 0;
  o.run.keep_best = true;  // saves after an evaluation
  const data::TensorDataset training = points(), validation = points();
  std::string error;
  run_on_ranks(o, [&](const Ranks& ranks) {
    nn::Linear model(3, 4);
    nn::add_lora(model, {.rank = 2});
    if (at_start) nn::merge_lora(model);
    const auto loss = [&](const data::Batch& b) {
      if (!model.is_training()) nn::merge_lora(model);
      return classify(model(b.inputs), b.targets);
    };
    error = test::error_of([&] { Trainer(model, o, loss, ranks).fit(training, validation); });
    return 0;
  });
  return error;
}

}  // namespace

TEST_CASE("trainer: merged adapters are refused at the start and before a save") {
  for (const bool at_start : {true, false})
    CHECK(error_of_run(at_start) ==
          "train: lora.a is of a merged adapter and would be in no checkpoint; call "
          "unmerge_lora()");
}

}  // namespace weft::train::merged_adapters_test
