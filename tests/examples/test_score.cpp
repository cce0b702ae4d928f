// Scores of texts and choices, compared with sums over the logits of single windows.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/examples/common/score.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::score_test {
using test::error_of;
namespace {

using Tokens = std::vector<std::int32_t>;

const nn::Gpt& model() {
  static const nn::Gpt m(
      {.arch = nn::Arch::llama, .layers = 1, .heads = 2, .dim = 16, .seq = 8, .vocab = 256});
  return m;
}

// log p(text[at] | text[from .. at)), from the logits.
double log_p(const Tokens& text, std::size_t from, std::size_t at) {
  const NoGradGuard off;
  const std::span<const std::int32_t> seen = std::span(text).subspan(from, at - from);
  const Tensor logits = model()(Tensor::from(seen, {1, std::ssize(seen)}));
  const float* last = logits.data<float>() + (seen.size() - 1) * 256;
  double sum = 0;
  for (int v = 0; v < 256; ++v) sum += std::exp(double(last[v]));
  return double(last[text[at]]) - std::log(sum);
}

Tokens bytes(const std::string& text) { return tokenizer::ByteTokenizer().encode(text); }

}  // namespace

TEST_CASE("score: each token is predicted once, from the window of its stride") {
  const tokenizer::ByteTokenizer t;
  const Tokens text = bytes("It was a truth, well known");
  for (const std::int64_t stride : {0, 8, 3, 1}) {
    CAPTURE(stride);
    const std::size_t step = stride ? std::size_t(stride) : 8;
    double nats = 0;
    for (std::size_t at = 1; at < text.size(); ++at) {
      // The window that first reaches the target: its last target is 8, 8 + step, ...
      std::size_t last = 8;
      while (last < at) last += step;
      last = std::min(last, text.size() - 1);
      nats -= log_p(text, last < 8 ? 0 : last - 8, at);
    }
    const auto s = examples::score_text(model(), t, text, stride);
    CHECK(s.nats == doctest::Approx(nats).epsilon(1e-5));
    CHECK(s.tokens == std::ssize(text) - 1);
    CHECK(s.bits_per_byte() ==
          doctest::Approx(nats / std::log(2.0) / double(s.tokens)).epsilon(1e-5));
    CHECK(s.perplexity() == doctest::Approx(std::exp(nats / double(s.tokens))).epsilon(1e-5));
  }
  CHECK(error_of([&] { (void)examples::score_text(model(), t, text, 9); }) ==
        "score: stride must be in [1, 8], got 9");
}

TEST_CASE("score: choices by their sum and per character") {
  const tokenizer::ByteTokenizer t;
  const double lengths[] = {1, 1, 1, 2, 3};  // the first two have two bytes
  for (const char* context : {"ab ", "c"}) {
    CAPTURE(context);
    const examples::Choice c{context, {"\xC3\xA9", "\xC2\xA3", "x", "yy", "z z"}, 0};
    const examples::Chosen chosen = examples::choose(model(), t, c, -1);
    const std::size_t head = std::string(context).find_last_not_of(' ') + 1;
    for (std::size_t i = 0; i < 5; ++i) {
      // A space of the context and the one before a choice are predicted too.
      const Tokens text = bytes(context + (" " + c.choices[i]));
      double sum = 0;
      for (std::size_t at = head; at < text.size(); ++at) sum += log_p(text, 0, at);
      CHECK(chosen.sums[i] == doctest::Approx(sum).epsilon(1e-5));
      CHECK(chosen.per_character[i] == doctest::Approx(sum / lengths[i]).epsilon(1e-5));
      CHECK(chosen.sums[i] <= chosen.sums[std::size_t(chosen.by_sum)]);
      CHECK(chosen.per_character[i] <= chosen.per_character[std::size_t(chosen.by_length)]);
    }
  }
  CHECK(
      examples::choose(model(), t, {"a context longer than the window", {"p", "q"}, 0}, -1).by_sum <
      2);
  CHECK(error_of([&] {
          (void)examples::choose(model(), t, {"", {"p", "q"}, 0}, -1);
        }) ==
        "choose: the context must have a token, because the tokenizer has none that begins a text");
}

}  // namespace weft::score_test
