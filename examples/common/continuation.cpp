#include "weft/examples/common/continuation.h"

#include <algorithm>
#include <cstdio>

#include "weft/core/random.h"

namespace weft::examples {

Continuation::Continuation(const nn::Gpt& model)
    : model_(model), cache_(model.config, 1, model.config.seq, model.embed.weight.dtype()) {}

void Continuation::append(std::span<const std::int32_t> tokens) {
  text_.insert(text_.end(), tokens.begin(), tokens.end());
}

std::int32_t Continuation::next(const nn::SamplingOptions& sampling, std::uint64_t seed,
                                std::uint64_t i) {
  const auto window = static_cast<std::size_t>(cache_.capacity());
  std::span<const std::int32_t> fresh = std::span<const std::int32_t>(text_).subspan(read_);
  if (static_cast<std::size_t>(cache_.length()) + fresh.size() > window) {
    const bool is_first = cache_.length() == 0;  // a prompt that is too long keeps what fits
    cache_.truncate(0);
    fresh = std::span<const std::int32_t>(text_).last(is_first ? window : window / 2 + 1);
  }
  const Tensor ids = Tensor::from(fresh, {1, static_cast<std::int64_t>(fresh.size())});
  const Tensor logits = model_.decode(ids, cache_).select(0, 0);
  read_ = text_.size();
  text_.push_back(static_cast<std::int32_t>(
      nn::sample_token(logits, sampling, {seed, stream_of("generate"), i})));
  return text_.back();
}

void Continuation::set(std::span<const std::int32_t> tokens) {
  const auto differs = std::mismatch(text_.begin(), text_.end(), tokens.begin(), tokens.end());
  std::size_t common = static_cast<std::size_t>(differs.first - text_.begin());
  common = std::min({common, read_, tokens.size() - 1});
  // A layer with a state forgets all tokens or none, and a window that moved holds another part.
  const bool keeps = static_cast<std::size_t>(cache_.length()) == read_ &&
                     (common == read_ || model_.config.pattern.find('d') == std::string::npos);
  read_ = keeps ? common : 0;
  cache_.truncate(static_cast<std::int64_t>(read_));
  text_.assign(tokens.begin(), tokens.end());
}

void put_text(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

Printer::Printer(const tokenizer::Tokenizer& t, std::span<const std::int32_t> prompt,
                 const Ends& ends)
    : stream_(t), stop_(ends.texts), end_tokens_(ends.tokens) {
  for (const std::int32_t token : prompt) stream_.next(token);
}

void Printer::put(const std::string& text) {
  put_text(text);
  text_ += text;
}

bool Printer::print(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end()) return false;
    put(stop_.next(stream_.next(token)));
    if (stop_.stopped()) return false;
  }
  std::fflush(stdout);
  return true;
}

void Printer::finish() {
  put(stop_.next(stream_.finish()));
  put(stop_.finish());
  put_text("\n");
  std::fflush(stdout);
}

}  // namespace weft::examples
