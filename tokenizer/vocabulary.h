#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/tokenizer/tokenizer.h"

namespace weft::tokenizer {

/// What a token is, with llama.cpp's numbers.
enum class TokenType : std::int32_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

/// A tokenizer in the terms of llama.cpp, which has no regular expressions of its own: names stand
/// for those that it knows.
struct Vocabulary {
  /// "gpt2": what merges by a list, bytes or, with the cut "sarvam-moe", characters; "llama":
  /// characters that merge by score.
  std::string model;
  std::string pre;                  ///< gpt2: the name of how text is cut
  std::vector<std::string> tokens;  ///< bytes in GPT-2's alphabet, or characters and "<0x0A>"
  std::vector<TokenType> types;
  std::vector<std::string> merges;    ///< gpt2
  std::vector<float> scores;          ///< llama
  bool space_prefix = false;          ///< llama: a space comes before the text
  std::optional<std::int32_t> first;  ///< what comes before a text, "<s>"
  std::optional<std::int32_t> last, unknown;
  /// Where llama.cpp may give other ids, as it cannot be told all; empty: nowhere known.
  std::string differs;
};

/// The vocabulary of a tokenizer, with tokens "[PAD7]" of no use for ids up to `size` that have
/// none. Throws Error on a tokenizer that llama.cpp has no equal of, and names the part; and when
/// it has more than `size` ids.
Vocabulary vocabulary_of(const Tokenizer& tokenizer, std::int64_t size);

}  // namespace weft::tokenizer
