#include "weft/examples/common/continuation.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "weft/core/random.h"

namespace weft::examples {

Continuation::Continuation(const nn::Gpt& model)
    : model_(model), cache_(model.config, 1, model.config.seq, model.embed.weight.dtype()) {}

void Continuation::append(std::span<const std::int32_t> tokens) {
  text_.insert(text_.end(), tokens.begin(), tokens.end());
}

// The logits after the text, of a pass of its own.
Tensor Continuation::logits() {
  const auto window = static_cast<std::size_t>(cache_.capacity());
  std::span<const std::int32_t> fresh = std::span<const std::int32_t>(text_).subspan(read_);
  if (static_cast<std::size_t>(cache_.length()) + fresh.size() > window) {
    const bool is_first = cache_.length() == 0;  // a prompt that is too long keeps what fits
    cache_.truncate(0);
    fresh = std::span<const std::int32_t>(text_).last(is_first ? window : window / 2 + 1);
  }
  const Tensor ids = Tensor::from(fresh, {1, static_cast<std::int64_t>(fresh.size())});
  return model_.decode(ids, cache_).select(0, 0);
}

std::int32_t Continuation::draw(const Tensor& logits, const nn::SamplingOptions& sampling,
                                std::uint64_t seed, std::uint64_t i) {
  read_ = text_.size();
  text_.push_back(static_cast<std::int32_t>(
      nn::sample_token(logits, sampling, {seed, stream_of("generate"), i})));
  return text_.back();
}

std::int32_t Continuation::next(const nn::SamplingOptions& sampling, std::uint64_t seed,
                                std::uint64_t i) {
  return draw(logits(), sampling, seed, i);
}

// Whether the next pass reads one token after those in the cache.
bool Continuation::has_room() const {
  return text_.size() - read_ == 1 && cache_.length() < cache_.capacity();
}

std::vector<std::int32_t> Continuation::next_of(std::span<const Turn> turns,
                                                const nn::SamplingOptions& sampling,
                                                std::uint64_t seed) {
  std::vector<std::int32_t> last;
  std::vector<nn::KvCache*> caches;
  std::vector<Tensor> logits(turns.size());
  std::vector<std::size_t> together;
  for (std::size_t k = 0; k < turns.size(); ++k)
    if (Continuation& t = *turns[k].text; t.has_room()) {
      together.push_back(k);
      last.push_back(t.text_.back());
      caches.push_back(&t.cache_);
    }
  if (together.size() > 1) {
    const Tensor all = turns[0].text->model_.decode(
        Tensor::from(std::span<const std::int32_t>(last), {std::ssize(last), 1}), caches);
    for (std::size_t row = 0; row < together.size(); ++row)
      logits[together[row]] = all.select(0, static_cast<std::int64_t>(row));
  }
  std::vector<std::int32_t> out;
  for (std::size_t k = 0; k < turns.size(); ++k) {
    Continuation& t = *turns[k].text;
    out.push_back(t.draw(logits[k].defined() ? logits[k] : t.logits(), sampling, seed, turns[k].i));
  }
  return out;
}

void Continuation::set(std::span<const std::int32_t> tokens) {
  const auto differs = std::mismatch(text_.begin(), text_.end(), tokens.begin(), tokens.end());
  std::size_t common = static_cast<std::size_t>(differs.first - text_.begin());
  common = std::min({common, read_, tokens.size() - 1});
  // A layer with a state forgets all tokens or none, and a window that moved holds another part.
  const bool keeps = static_cast<std::size_t>(cache_.length()) == read_ &&
                     (common == read_ || !cache_.has_state());
  read_ = keeps ? common : 0;
  cache_.truncate(static_cast<std::int64_t>(read_));
  text_.assign(tokens.begin(), tokens.end());
}

void put_text(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

Printer::Printer(const tokenizer::Tokenizer& t, std::span<const std::int32_t> prompt,
                 const Ends& ends, bool shows)
    : shows_(shows), stream_(t), stop_(ends.texts), end_tokens_(ends.tokens) {
  for (const std::int32_t token : prompt) stream_.next(token);
}

void Printer::emit(std::string_view text) {
  if (shows_)
    put_text(text);
  else
    waiting_ += text;
}

void Printer::put(const std::string& text) {
  emit(text);
  text_ += text;
}

void Printer::show() {
  shows_ = true;
  put_text(std::exchange(waiting_, {}));
  std::fflush(stdout);
}

bool Printer::print(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end()) return false;
    put(stop_.next(stream_.next(token)));
    if (stop_.stopped()) return false;
  }
  return std::fflush(stdout) == 0;  // a text whose output is lost ends here
}

void Printer::finish() {
  put(stop_.next(stream_.finish()));
  put(stop_.finish());
  emit("\n");
  finished_ = true;
  std::fflush(stdout);
}

}  // namespace weft::examples
