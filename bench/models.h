#pragma once
#include <span>
#include <string>

#include "weft/core/error.h"
#include "weft/nn/gpt.h"

/// The models whose training steps are compared with other frameworks and with the floor of the
/// machine: GPT-2 style with a tied head, in f32 on the CPU, in bf16 or f32 on a GPU.
namespace weft::bench {

struct StepModel {
  const char* name;
  nn::GptConfig config;
  std::int64_t batch, tokens;  ///< tokens per row; config.seq is the maximum

  std::int64_t step_tokens() const { return batch * tokens; }
  /// The config with seq reduced to the rows of this batch, for counting operations.
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

/// The models for a GPU; the last one only shows that the program runs on an emulated GPU.
inline const StepModel kGpuStepModels[] = {
    {"124m-b4-t1024",
     {.layers = 12, .heads = 12, .dim = 768, .seq = 1024, .vocab = kGpt2Vocab},
     4,
     1024},
    {"124m-b16-t1024",
     {.layers = 12, .heads = 12, .dim = 768, .seq = 1024, .vocab = kGpt2Vocab},
     16,
     1024},
    {"124m-b64-t1024",
     {.layers = 12, .heads = 12, .dim = 768, .seq = 1024, .vocab = kGpt2Vocab},
     64,
     1024},
    {"350m-b32-t1024",
     {.layers = 24, .heads = 16, .dim = 1024, .seq = 1024, .vocab = kGpt2Vocab},
     32,
     1024},
    {"774m-b16-t1024",
     {.layers = 36, .heads = 20, .dim = 1280, .seq = 1024, .vocab = kGpt2Vocab},
     16,
     1024},
    {"1558m-b8-t1024",
     {.layers = 48, .heads = 25, .dim = 1600, .seq = 1024, .vocab = kGpt2Vocab},
     8,
     1024},
    {"smoke", {.layers = 1, .heads = 2, .dim = 32, .seq = 16, .vocab = 61}, 2, 16},
};

/// On a GPU the rows of the embedding and the head are padded to a multiple of this, here and in
/// the peers, whose products need the alignment. No token has a padded id.
inline constexpr std::int64_t kGpuVocabMultiple = 64;

/// Throws Error listing the names when the model is unknown.
inline const StepModel& step_model(const std::string& name) {
  std::string known;
  const auto find = [&](std::span<const StepModel> models) -> const StepModel* {
    for (const StepModel& m : models) {
      if (name == m.name) return &m;
      known += (known.empty() ? "" : ", ") + std::string(m.name);
    }
    return nullptr;
  };
  if (const StepModel* m = find(kStepModels)) return *m;
  if (const StepModel* m = find(kGpuStepModels)) return *m;
  check(false, "--model: one of {}, got {}", known, name);
  return kStepModels[0];
}

}  // namespace weft::bench
