#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tokenizer {

/// How text is cut into pieces before merging; no token crosses a cut. Each is one regular
/// expression of a published tokenizer, scanned by hand.
enum class Split : std::uint8_t {
  gpt2,
  cl100k,  ///< Llama 3
  gpt4,    ///< the same, but white space to the end of the text is one piece
  qwen2,
  qwen3_5,
  o200k,   ///< GPT-4o, Llama 4
  tekken,  ///< Mistral
  nanochat,
  deepseek_digits,
  deepseek_cjk,
  deepseek_words,
  digit,      ///< each digit by itself
  digits,     ///< runs of digits
  marked,     ///< before each U+2581 that follows another character
  metaspace,  ///< before each U+2581
};

/// The split with this regular expression, or -1.
int find_split(std::string_view regex);
/// The regular expression of a split, as Hugging Face writes it.
std::string_view regex_of(Split split);
/// Names and expressions that find_split() knows, for an error text.
std::string known_splits();

/// Calls f(piece) for the pieces of `text`, cut by each of the splits in turn.
template <class F>
void each_piece(std::string_view text, const std::vector<Split>& splits, const F& f,
                std::size_t stage = 0);

/// The end of the piece that begins at text[at]. The text ends where the piece before it was cut.
std::size_t piece_end(Split split, std::string_view text, std::size_t at);

template <class F>
void each_piece(std::string_view text, const std::vector<Split>& splits, const F& f,
                std::size_t stage) {
  if (stage == splits.size()) {
    if (!text.empty()) f(text);
    return;
  }
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(splits[stage], text, at);
    each_piece(text.substr(at, end - at), splits, f, stage + 1);
    at = end;
  }
}

}  // namespace weft::tokenizer
