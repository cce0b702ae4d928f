#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weft/nn/gpt.h"
#include "weft/tokenizer/tokenizer.h"

namespace weft::examples {

/// `count` tokens sampled after `first` in evaluation mode at temperature 0.8, but at most the
/// model's sequence length. Restores training mode.
std::vector<std::int32_t> sample_tokens(nn::Gpt& model, std::int32_t first, std::int64_t count,
                                        std::uint64_t seed);

/// Tokens for display: as text, or without a tokenizer as numbers.
std::string sample_text(const std::vector<std::int32_t>& tokens,
                        const tokenizer::Tokenizer* tokenizer);

}  // namespace weft::examples
