#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/nn/gpt.h"
#include "weft/tokenizer/tokenizer.h"

namespace weft::examples {

/// Sum of the log-probabilities of tokens[first...], each given all before it, in nats.
/// Throws Error (Fault::non_finite) if it is NaN.
double log_likelihood(const nn::Gpt& model, std::span<const std::int32_t> tokens,
                      std::int64_t first);

/// The loss of a text under a model.
struct TextScore {
  double nats = 0;          ///< sum over the tokens that were predicted
  std::int64_t tokens = 0;  ///< predicted: all but the first
  std::int64_t bytes = 0;   ///< of text that they stand for
  double perplexity() const;
  double bits_per_byte() const;
};

/// Each window of model.config.seq tokens begins `stride` after the one before; of a window the
/// tokens count that no earlier one has predicted. Stride 0: as long as a window.
TextScore score_text(const nn::Gpt& model, const tokenizer::Tokenizer& t,
                     std::span<const std::int32_t> tokens, std::int64_t stride);

/// A question with several answers.
struct Choice {
  std::string context;
  std::vector<std::string> choices;
  std::int64_t answer = 0;  ///< index of the right one
};
/// {"context": "...", "choices": ["...", ...], "answer": 0}. `what` names it in errors, which are
/// the user's.
Choice choice_from(std::string_view json, const std::string& what);

/// The answers of a model: the choice with the highest log-likelihood after the context and a
/// space, and that with the highest per character.
struct Chosen {
  std::vector<double> sums, per_character;  ///< log-likelihoods of the choices
  std::int64_t by_sum = 0, by_length = 0;
};
/// `begin` is the token before an empty context; -1: none, which throws Error.
Chosen choose(const nn::Gpt& model, const tokenizer::Tokenizer& t, const Choice& c,
              std::int32_t begin);

}  // namespace weft::examples
