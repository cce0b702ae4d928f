#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weft/nn/gpt.h"

namespace weft::examples {

/// `count` tokens that the model writes after `first`, in evaluation mode, at temperature 0.8; the
/// model trains on afterwards. At most as many as its sequence has places for.
std::vector<std::int32_t> sample_tokens(nn::Gpt& model, std::int32_t first, std::int64_t count,
                                        std::uint64_t seed);

/// Tokens as a reader sees them: text where each is a byte, else their numbers.
std::string sample_text(const std::vector<std::int32_t>& tokens, bool bytes);

}  // namespace weft::examples
