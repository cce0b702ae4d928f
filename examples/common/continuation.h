#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/nn/gpt.h"
#include "weft/nn/kv_cache.h"
#include "weft/nn/sampling.h"
#include "weft/tokenizer/stop_text.h"
#include "weft/tokenizer/tokenizer.h"

namespace weft::examples {

/// A text that a model goes on with, token by token. When the model's window is full, the text goes
/// on from its second half.
class Continuation {
 public:
  explicit Continuation(const nn::Gpt& model);
  /// Adds tokens that the model has not written.
  void append(std::span<const std::int32_t> tokens);
  /// Draws a token and adds it. Draw number `i` of a seed depends on nothing else.
  std::int32_t next(const nn::SamplingOptions& sampling, std::uint64_t seed, std::uint64_t i);
  /// Replaces the text. What it has in common with the text so far is not read again.
  void set(std::span<const std::int32_t> tokens);

 private:
  const nn::Gpt& model_;
  nn::KvCache cache_;
  std::vector<std::int32_t> text_;
  std::size_t read_ = 0;  ///< tokens of text_ that the model has seen
};

/// Where a text ends: at one of some tokens, or before one of some strings.
struct Ends {
  std::vector<std::int32_t> tokens;
  std::vector<std::string> texts;
};

/// Prints the tokens that follow a prompt as text, whole characters at a time, up to its end.
class Printer {
 public:
  /// The stream reads the prompt too: a space is left out only where a text begins.
  Printer(const tokenizer::Tokenizer& t, std::span<const std::int32_t> prompt, const Ends& ends);
  /// False once the text has ended.
  bool print(std::span<const std::int32_t> tokens);
  void finish();
  /// What has been printed, without the line break of finish().
  const std::string& text() const { return text_; }

 private:
  void put(const std::string& text);

  std::string text_;
  tokenizer::StreamDecoder stream_;
  tokenizer::StopText stop_;
  std::vector<std::int32_t> end_tokens_;
};

/// Prints a string to standard output, NUL included.
void put_text(std::string_view text);

}  // namespace weft::examples
