#include "weft/examples/common/score.h"

#include <algorithm>
#include <cmath>

#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/data/dataset.h"
#include "weft/examples/common/model_folder.h"
#include "weft/io/json.h"

namespace weft::examples {

double log_likelihood(const nn::Gpt& model, std::span<const std::int32_t> tokens,
                      std::int64_t first) {
  const NoGradGuard off;
  const std::int64_t n = std::ssize(tokens) - 1;
  std::vector<std::int32_t> targets(tokens.begin() + 1, tokens.end());
  std::fill_n(targets.begin(), first - 1, data::kIgnore);
  const Tensor h = model.hidden(Tensor::from(tokens.first(static_cast<std::size_t>(n)), {1, n}));
  const double nats =
      model.loss.sum(h, model.head, Tensor::from(std::span<const std::int32_t>(targets), {1, n}))
          .loss.item();
  if (std::isnan(nats)) throw Error("score: the model's logits must not be NaN", Fault::non_finite);
  return -nats;
}

double TextScore::perplexity() const { return std::exp(nats / static_cast<double>(tokens)); }

double TextScore::bits_per_byte() const {
  return nats / std::log(2.0) / static_cast<double>(bytes);
}

TextScore score_text(const nn::Gpt& model, const tokenizer::Tokenizer& t,
                     std::span<const std::int32_t> tokens, std::int64_t stride) {
  const std::int64_t window = model.config.seq, n = std::ssize(tokens);
  if (stride == 0) stride = window;
  check(stride >= 1 && stride <= window, "score: stride must be in [1, {}], got {}", window,
        stride);
  check(n >= 2, "score: the text must have at least 2 tokens, got {}", n);
  TextScore out;
  // Targets up to `end` are predicted; the next window's last target is `stride` further.
  for (std::int64_t end = 0; end < n - 1;) {
    const std::int64_t next = std::min(end == 0 ? window : end + stride, n - 1);
    const std::int64_t begin = std::max<std::int64_t>(next - window, 0);
    const auto part =
        tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(next - begin + 1));
    out.nats -= log_likelihood(model, part, end + 1 - begin);
    end = next;
  }
  out.tokens = n - 1;
  for (const std::int32_t token : tokens.subspan(1))
    if (t.has(token) && !t.is_special(token)) out.bytes += std::ssize(t.bytes_of(token));
  return out;
}

Choice choice_from(std::string_view text, const std::string& what) {
  Choice c;
  try {
    const io::Json json = io::Json::parse(text);
    c.context = json.at("context").as_string();
    for (const io::Json& choice : json.at("choices").items())
      c.choices.push_back(choice.as_string());
    c.answer = json.at("answer").as_int();
  } catch (const Error& e) {
    throw Error(message("{}: {}", what, std::string(e.what())), Fault::user);
  }
  check(c.choices.size() >= 2, "{}: choices must be at least 2, got {}", what, c.choices.size());
  for (const std::string& choice : c.choices)
    check(!choice.empty(), "{}: a choice must not be empty", what);
  check(c.answer >= 0 && c.answer < std::ssize(c.choices), "{}: answer must be in [0, {}), got {}",
        what, c.choices.size(), c.answer);
  return c;
}

namespace {

// Code points, as Python's len() counts them.
double characters(const std::string& text) {
  return static_cast<double>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

// Source: github.com/EleutherAI/lm-evaluation-harness, task type multiple_choice: spaces at the end
// of the context belong to the continuation, whose tokens are those of the whole text after as many
// as the context has alone.
Chosen choose(const nn::Gpt& model, const tokenizer::Tokenizer& t, const Choice& c,
              std::int32_t begin) {
  std::string context = c.context;
  context.resize(context.find_last_not_of(" \t\n\r\f\v") + 1);
  const std::string spaces = c.context.substr(context.size());
  const std::vector<std::int32_t> head = t.encode(context);
  check(!head.empty() || begin >= 0,
        "choose: the context must have a token, because the tokenizer has none that begins a text");
  Chosen out;
  for (const std::string& choice : c.choices) {
    std::vector<std::int32_t> tokens = t.encode(context + spaces + " " + choice);
    std::int64_t first = std::ssize(head);
    if (first == 0) {
      tokens.insert(tokens.begin(), begin);
      first = 1;
    }
    check_tokens(tokens, model.config.vocab);
    check(first < std::ssize(tokens), "choose: a choice must have a token of its own, got '{}'",
          choice);
    // A text that is too long loses its beginning.
    const std::int64_t cut = std::max<std::int64_t>(std::ssize(tokens) - model.config.seq - 1, 0);
    tokens.erase(tokens.begin(), tokens.begin() + cut);
    out.sums.push_back(log_likelihood(model, tokens, std::max<std::int64_t>(first - cut, 1)));
    out.per_character.push_back(out.sums.back() / characters(choice));
  }
  const auto best = [](const std::vector<double>& v) {  // the first of equal ones
    return std::max_element(v.begin(), v.end()) - v.begin();
  };
  out.by_sum = best(out.sums);
  out.by_length = best(out.per_character);
  return out;
}

}  // namespace weft::examples
