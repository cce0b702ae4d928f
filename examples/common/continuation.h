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
  /// next() of several texts, each with its own number of the draw. Those with one new token share
  /// a pass through the model; the first token after a prompt, or after the window has moved, is
  /// computed alone. `texts` are of one model.
  struct Turn {
    Continuation* text;
    std::uint64_t i;
  };
  static std::vector<std::int32_t> next_of(std::span<const Turn> turns,
                                           const nn::SamplingOptions& sampling, std::uint64_t seed);
  /// Replaces the text. What it has in common with the text so far is not read again.
  void set(std::span<const std::int32_t> tokens);

 private:
  bool has_room() const;
  Tensor logits();
  std::int32_t draw(const Tensor& logits, const nn::SamplingOptions& sampling, std::uint64_t seed,
                    std::uint64_t i);

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
  /// The stream reads the prompt too: a space is left out only where a text begins. Without
  /// `shows`, everything waits for show().
  Printer(const tokenizer::Tokenizer& t, std::span<const std::int32_t> prompt, const Ends& ends,
          bool shows = true);
  /// False once the text has ended.
  bool print(std::span<const std::int32_t> tokens);
  void finish();
  /// Prints what waits, and from now on everything at once.
  void show();
  /// Prints a text that is not the model's.
  void emit(std::string_view text);
  bool has_finished() const { return finished_; }
  /// What has been printed, without the line break of finish().
  const std::string& text() const { return text_; }

 private:
  void put(const std::string& text);

  bool shows_, finished_ = false;
  std::string text_, waiting_;
  tokenizer::StreamDecoder stream_;
  tokenizer::StopText stop_;
  std::vector<std::int32_t> end_tokens_;
};

/// Prints a string to standard output, NUL included.
void put_text(std::string_view text);

}  // namespace weft::examples
