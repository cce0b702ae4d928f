#include "weft/tokenizer/tokenizer.h"

#include <array>

#include "weft/core/error.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

constexpr std::array<char, 256> kBytes = [] {
  std::array<char, 256> all{};
  for (int i = 0; i < 256; ++i) all[static_cast<std::size_t>(i)] = static_cast<char>(i);
  return all;
}();

// The bytes that a token adds to a text; `began` says whether an earlier one was ordinary text.
std::string_view text_of(const Tokenizer& t, std::int32_t token, const DecodeOptions& o,
                         bool& began) {
  std::string_view bytes = t.bytes_of(token);
  if (t.is_special(token)) return o.special ? bytes : std::string_view();
  if (!began && t.drops_first_space() && bytes.starts_with(' ')) bytes.remove_prefix(1);
  began = true;
  return bytes;
}

}  // namespace

std::string Tokenizer::decode(std::span<const std::int32_t> tokens,
                              const DecodeOptions& options) const {
  std::string text;
  bool began = false;
  for (const std::int32_t token : tokens) text += text_of(*this, token, options, began);
  return text;
}

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text, const EncodeOptions&) const {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string_view ByteTokenizer::bytes_of(std::int32_t token) const {
  check(token >= 0 && token < 256, "decode: a byte token must be in [0, 256), got {}", token);
  return {&kBytes[static_cast<std::size_t>(token)], 1};
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options)
    : tokenizer_(&tokenizer), options_(options) {}

std::string StreamDecoder::next(std::int32_t token) {
  held_ += text_of(*tokenizer_, token, options_, began_);
  const std::size_t complete = held_.size() - incomplete_utf8(held_);
  std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, complete));
  held_.erase(0, complete);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = replace_invalid_utf8(held_);
  held_.clear();
  began_ = false;
  return text;
}

}  // namespace weft::tokenizer
