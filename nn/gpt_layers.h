#pragma once
#include <memory>
#include <span>
#include <string>

#include "weft/nn/block.h"
#include "weft/nn/gpt_config.h"

namespace weft::nn {

/// A mixer that GptConfig::pattern can name. Adding one is a line in the table of gpt_layers.cpp.
struct MixerKind {
  char letter;
  const char* name;
  /// `proj`: how what it adds to the residual stream starts.
  std::unique_ptr<Mixer> (*make)(const GptConfig& config, const Init& proj);
};
std::span<const MixerKind> mixer_kinds();
/// The letters with their names: "a (attention) and d (gated delta net)".
std::string mixer_letters();
/// That of a block.
const MixerKind& mixer_kind(const GptConfig& config, std::int64_t block);

/// A block of a model.
Block make_block(const GptConfig& config, std::int64_t block);
Norm make_norm(const GptConfig& config);

}  // namespace weft::nn
