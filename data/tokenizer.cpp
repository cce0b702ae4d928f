#include "weft/data/tokenizer.h"

#include "weft/core/error.h"

namespace weft::data {

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const std::int32_t t : tokens) {
    check(t >= 0 && t < 256, "decode: a byte token must be in [0, 256), got {}", t);
    text += static_cast<char>(t);
  }
  return text;
}

}  // namespace weft::data
