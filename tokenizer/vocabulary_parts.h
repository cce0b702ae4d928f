#pragma once
// What the two kinds of vocabulary share.
#include <string>
#include <unordered_set>
#include <utility>

#include "weft/core/error.h"
#include "weft/tokenizer/bpe.h"
#include "weft/tokenizer/utf8.h"
#include "weft/tokenizer/vocabulary.h"

namespace weft::tokenizer {

[[noreturn]] inline void refuse(const std::string& part) {
  throw Error(message("tokenizer: llama.cpp has no equal of {}", part));
}

/// Adds to what may differ.
inline void add_difference(Vocabulary& out, const std::string& what) {
  if (!what.empty()) out.differs += (out.differs.empty() ? "" : "; ") + what;
}

/// Tokens and their types by id.
class Tokens {
 public:
  Tokens(Vocabulary& out, std::int64_t size) : out_(out) {
    out_.tokens.resize(static_cast<std::size_t>(size));
    out_.types.assign(static_cast<std::size_t>(size), TokenType::unused);
  }
  void set(std::int64_t id, std::string text, TokenType type) {
    out_.tokens[static_cast<std::size_t>(id)] = std::move(text);
    out_.types[static_cast<std::size_t>(id)] = type;
  }
  void finish() {
    std::unordered_set<std::string_view> seen;
    for (std::size_t i = 0; i < out_.tokens.size(); ++i) {
      std::string& text = out_.tokens[i];
      if (text.empty()) text = "[PAD" + std::to_string(i) + "]";
      check(seen.insert(text).second, "tokenizer: two tokens are '{}', which llama.cpp refuses",
            shown(text));
    }
  }

 private:
  Vocabulary& out_;
};

/// The tokens of a model of characters, and how they merge.
void add_characters(const BpeParts& parts, Vocabulary& out, Tokens& tokens);

}  // namespace weft::tokenizer
