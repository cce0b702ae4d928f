#pragma once
#include <cstring>
#include <string>

#include "weft/core/error.h"
#include "weft/nn/gpt.h"

/// The models whose training steps are compared with those of other frameworks and with the floor
/// of the machine: GPT-2 style, with a tied head, in f32.
namespace weft::bench {

struct StepModel {
  const char* name;
  nn::GptConfig config;
  std::int64_t batch, tokens;  ///< tokens of one row; config.seq is how long a row may be

  std::int64_t step_tokens() const { return batch * tokens; }
  /// The config as if this batch's rows were the longest, for counting operations.
  nn::GptConfig counted() const {
    nn::GptConfig c = config;
    c.seq = tokens;
    return c;
  }
};

inline constexpr std::int64_t kGpt2Vocab = 50257;

inline const StepModel kStepModels[] = {
    {"tiny", {.layers = 4, .heads = 4, .dim = 128, .seq = 256, .vocab = 256}, 8, 256},
    {"small", {.layers = 6, .heads = 6, .dim = 384, .seq = 256, .vocab = 256}, 12, 256},
    {"124m-b4-t256",
     {.layers = 12, .heads = 12, .dim = 768, .seq = 1024, .vocab = kGpt2Vocab},
     4,
     256},
    {"124m-b1-t1024",
     {.layers = 12, .heads = 12, .dim = 768, .seq = 1024, .vocab = kGpt2Vocab},
     1,
     1024},
    {"124m-b4-t64",
     {.layers = 12, .heads = 12, .dim = 768, .seq = 1024, .vocab = kGpt2Vocab},
     4,
     64},
};

/// Throws Error that lists the names when there is none.
inline const StepModel& step_model(const std::string& name) {
  std::string known;
  for (const StepModel& m : kStepModels) {
    if (name == m.name) return m;
    known += (known.empty() ? "" : ", ") + std::string(m.name);
  }
  check(false, "--model: one of {}, got {}", known, name);
  return kStepModels[0];
}

}  // namespace weft::bench
