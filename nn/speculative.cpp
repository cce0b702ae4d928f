#include "weft/nn/speculative.h"

#include <algorithm>

#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/core/random.h"

namespace weft::nn {
namespace {

GptConfig one_layer(GptConfig config) {
  config.layers = 1;
  return config;
}

double uniform(const RandomKey& key) {
  return (static_cast<double>(random_bits(key, 0)) + 0.5) * 0x1p-32;
}

}  // namespace

Speculator::Speculator(const Gpt& model, const SamplingOptions& sampling, std::uint64_t seed)
    : model_(model),
      sampling_(sampling),
      seed_(seed),
      cache_(model.config, 1, model.config.seq, model.embed.weight.dtype(),
             model.embed.weight.device()) {
  const GptConfig& c = model.config;
  check(c.mtp.depths >= 1, "speculative: the model must have at least 1 MTP depth, got 0");
  check(!cache_.has_state(),
        "speculative: every layer must have attention, as a state cannot take back a draft, got "
        "pattern '{}'",
        c.pattern);
  const DType dtype = model.embed.weight.dtype();
  const Device device = model.embed.weight.device();
  for (std::int64_t d = 0; d < c.mtp.depths; ++d)
    depths_.push_back({KvCache(one_layer(c), 1, c.seq, dtype, device),
                       Tensor::zeros({1, c.seq, c.dim}, dtype, device)});
}

void Speculator::start(std::span<const std::int32_t> prompt) {
  check(!prompt.empty(), "speculative: the prompt must have at least 1 token, got none");
  text_.assign(prompt.begin(), prompt.end());
  known_ = text_.size();
  base_ = known_ - std::min(known_, static_cast<std::size_t>(cache_.capacity()));
  forget_all();
  stats_ = {};
}

std::span<const std::int32_t> Speculator::next(std::int64_t most) {
  check(known_ > 0, "speculative: start() must come before next()");
  check(most >= 1, "speculative: most must be at least 1, got {}", most);
  const NoGradGuard off;
  make_room();
  const std::size_t before = known_;
  const std::int64_t first = cache_.length();
  const auto fresh = static_cast<std::int64_t>(known_ - base_) - first;
  // Drafts need a previous pass, and must fit into the caches.
  drafts_.clear();
  if (first > 0)
    draft(std::min({most - 1, model_.config.mtp.depths, cache_.capacity() - first - 1}));

  const std::int64_t count = fresh + static_cast<std::int64_t>(drafts_.size());
  const Tensor h = model_.extend(tokens_from(first, count), cache_);
  depths_[0].input.narrow(1, first, count).copy_(h);
  verify(model_.head(h.narrow(1, fresh - 1, count - fresh + 1)).select(0, 0));
  ++stats_.passes;
  return std::span<const std::int32_t>(text_).subspan(before);
}

// When the window is full, continues from its second half, as generation without drafts does.
void Speculator::make_room() {
  if (static_cast<std::int64_t>(known_ - base_) <= cache_.capacity()) return;
  base_ = known_ - static_cast<std::size_t>(cache_.capacity() / 2 + 1);
  forget_all();
}

void Speculator::forget_all() {
  cache_.truncate(0);
  for (Depth& d : depths_) d.cache.truncate(0);
}

// Depth d predicts the token d + 1 places after the last one. It first processes the places that
// are new to it, or that it has read with a rejected draft.
void Speculator::draft(std::int64_t count) {
  const std::int64_t places = cache_.length();
  for (std::int64_t d = 1; d <= count; ++d) {
    Depth& depth = depths_[static_cast<std::size_t>(d - 1)];
    const std::int64_t first = depth.cache.length(), n = places - first;
    const Tensor h = model_
                         .mtp_trunk(static_cast<int>(d), tokens_from(first + d, n),
                                    depth.input.narrow(1, first, n), {}, &depth.cache)
                         .hidden;
    if (d < static_cast<std::int64_t>(depths_.size()))
      depths_[static_cast<std::size_t>(d)].input.narrow(1, first, n).copy_(h);
    std::vector<double> q = token_probabilities(
        model_.head(h.narrow(1, n - 1, 1)).select(0, 0).select(0, 0), sampling_);
    const auto token = static_cast<std::int32_t>(draw_token(q, key("generate.draft", d - 1)));
    text_.push_back(token);
    drafts_.push_back({token, std::move(q)});
  }
}

// logits (drafts + 1, V): the model's own logits for the first new token and after each draft.
void Speculator::verify(const Tensor& logits) {
  std::int64_t accepted = 0;
  std::vector<double> p;
  for (const Draft& draft : drafts_) {
    p = token_probabilities(logits.select(0, accepted), sampling_);
    const auto x = static_cast<std::size_t>(draft.token);
    if (uniform(key("generate.accept", accepted)) * draft.q[x] >= p[x]) break;
    ++accepted;
  }
  const auto drafted = static_cast<std::int64_t>(drafts_.size());
  std::int64_t token;
  if (accepted < drafted) {
    const std::vector<double>& q = drafts_[static_cast<std::size_t>(accepted)].q;
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = std::max(0.0, p[i] - q[i]);
    token = draw_token(p, key("generate.instead", accepted));
  } else {
    token = sample_token(logits.select(0, accepted), sampling_, key("generate", accepted));
  }
  stats_.drafted += drafted;
  stats_.accepted += accepted;
  stats_.tokens += accepted + 1;
  text_.resize(known_ + static_cast<std::size_t>(accepted));
  text_.push_back(static_cast<std::int32_t>(token));
  known_ = text_.size();
  forget_rejected(drafted - accepted);
}

// Depth d at place i has read token i + d: drops the entries that read a rejected token.
void Speculator::forget_rejected(std::int64_t rejected) {
  cache_.truncate(cache_.length() - rejected);
  std::int64_t d = 0;
  for (Depth& depth : depths_)
    depth.cache.truncate(std::clamp<std::int64_t>(cache_.length() - ++d, 0, depth.cache.length()));
}

Tensor Speculator::tokens_from(std::int64_t first, std::int64_t count) const {
  const auto ids = std::span<const std::int32_t>(text_).subspan(
      base_ + static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  return Tensor::from(ids, {1, count}).to(model_.embed.weight.device());
}

// The key for drawing the token `ahead` places after the known ones.
RandomKey Speculator::key(const char* use, std::int64_t ahead) const {
  return {seed_, stream_of(use), static_cast<std::uint64_t>(stats_.tokens + ahead)};
}

}  // namespace weft::nn
