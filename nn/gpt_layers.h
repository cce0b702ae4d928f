#pragma once
#include <memory>
#include <span>
#include <string>

#include "weft/nn/block.h"
#include "weft/nn/gpt_config.h"

namespace weft::nn {

/// A mixer that GptConfig::pattern can name. To add one, add a line to the table in gpt_layers.cpp.
struct MixerKind {
  char letter;
  const char* name;
  /// `proj` initializes the projection back into the residual stream.
  Child<Mixer> (*make)(const GptConfig& config, const Init& proj);
};
std::span<const MixerKind> mixer_kinds();
/// The letters with their names: "a (attention) and d (gated delta net)".
std::string mixer_letters();
/// The mixer of a block.
const MixerKind& mixer_kind(const GptConfig& config, std::int64_t block);

/// Block number `block` of the model.
Block make_block(const GptConfig& config, std::int64_t block);
Norm make_norm(const GptConfig& config);

}  // namespace weft::nn
