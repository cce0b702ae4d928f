#pragma once
#include "weft/examples/common/gpt_task.h"
#include "weft/train/train_step.h"

namespace weft::examples {

/// The GPT for these options with its training step, on one rank.
struct GptStep {
  GptStep(const GptOptions& o, const train::Ranks& ranks) : gpt(o), step(gpt.task(), o, ranks) {}
  GptTask gpt;
  train::TrainStep step;
};

}  // namespace weft::examples
