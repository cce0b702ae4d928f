#include "weft/data/loader.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/io/json.h"

namespace weft::data {
namespace {

constexpr std::int64_t kMostEpochs = UINT32_MAX;  // the key of an epoch's order has 32 bits for it

/// Fills a row of seq inputs and targets from `count` + 1 tokens; the rest is padding.
void fill_row(const TokenStream& tokens, std::int64_t first, std::int64_t count, std::int64_t seq,
              std::int32_t* inputs, std::int32_t* targets) {
  if (count > 0) {
    std::vector<std::int32_t> row(static_cast<std::size_t>(count) + 1);  // one read for both
    tokens.read(first, row);
    std::copy_n(row.begin(), count, inputs);
    std::copy_n(row.begin() + 1, count, targets);
  }
  std::fill(inputs + count, inputs + seq, 0);
  std::fill(targets + count, targets + seq, kIgnore);
}

Batch empty_batch(std::int64_t rows, std::int64_t seq) {
  return {Tensor::empty({rows, seq}, DType::i32), Tensor::empty({rows, seq}, DType::i32)};
}

}  // namespace

io::Json to_json(const LoaderState& s) {
  io::Json json;
  json.set("epoch", s.epoch).set("index", s.index).set("seed", s.seed);
  json.set("seq", s.seq).set("tokens", s.tokens);
  return json;
}

LoaderState loader_state_from_json(const io::Json& json) {
  const auto field = [&](const char* key) { return json.at(key).as_int(); };
  return {field("epoch"), field("index"), field("seed"), field("seq"), field("tokens")};
}

TokenLoader::TokenLoader(TokenStream tokens, const Options& options)
    : tokens_(std::move(tokens)), options_(options) {
  check(options.batch >= 1, "loader: batch must be at least 1, got {}", options.batch);
  check(options.seq >= 1, "loader: seq must be at least 1, got {}", options.seq);
  check(tokens_.size() > options.seq,
        "loader: the data has {} tokens, a sequence needs {} (seq {} + 1); use a shorter --seq or "
        "more data",
        tokens_.size(), options.seq + 1, options.seq);
  windows_ = (tokens_.size() - 1) / options.seq;
}

std::int64_t TokenLoader::window_of(std::int64_t row) {
  const std::int64_t at = index_ + row, epoch = epoch_ + at / windows_;
  if (epoch != order_epoch_) {
    order_.resize(static_cast<std::size_t>(windows_));
    permute_range(
        order_, {options_.seed, stream_of("data.order"), static_cast<std::uint64_t>(epoch) << 32});
    order_epoch_ = epoch;
  }
  return order_[static_cast<std::size_t>(at % windows_)];
}

Batch TokenLoader::rows(std::int64_t first, std::int64_t count) {
  check(first >= 0 && count >= 0 && first + count <= options_.batch,
        "loader: rows [{}, {}) must lie in the global batch of {}", first, first + count,
        options_.batch);
  const std::int64_t seq = options_.seq;
  Batch out = empty_batch(count, seq);
  auto* inputs = out.inputs.data<std::int32_t>();
  auto* targets = out.targets.data<std::int32_t>();
  for (std::int64_t i = 0; i < count; ++i)
    fill_row(tokens_, window_of(first + i) * seq, seq, seq, inputs + i * seq, targets + i * seq);
  return out;
}

void TokenLoader::advance() {
  index_ += options_.batch;
  epoch_ += index_ / windows_;
  index_ %= windows_;
}

Batch TokenLoader::next(std::int64_t first, std::int64_t count) {
  Batch out = rows(first, count);
  advance();
  return out;
}

LoaderState TokenLoader::state() const {
  return {epoch_, index_, static_cast<std::int64_t>(options_.seed), options_.seq, tokens_.size()};
}

void TokenLoader::set_state(const LoaderState& s) {
  const LoaderState own = state();
  check(s.tokens == own.tokens, "loader: the saved position is in data of {} tokens, these have {}",
        s.tokens, own.tokens);
  check(s.seq == own.seq, "loader: the saved position is for seq {}, got {}", s.seq, own.seq);
  check(s.seed == own.seed, "loader: the saved position is for seed {}, got {}", s.seed, own.seed);
  check(s.epoch >= 0 && s.epoch <= kMostEpochs && s.index >= 0 && s.index < windows_,
        "loader: the saved position (epoch {}, window {}) must lie in an epoch of {} windows",
        s.epoch, s.index, windows_);
  epoch_ = s.epoch;
  index_ = s.index;
}

EvalLoader::EvalLoader(TokenStream tokens, std::int64_t batch, std::int64_t seq)
    : tokens_(std::move(tokens)), batch_(batch), seq_(seq) {
  check(batch >= 1, "loader: batch must be at least 1, got {}", batch);
  check(seq >= 1, "loader: seq must be at least 1, got {}", seq);
  check(tokens_.size() >= 2, "loader: the held-out data must have at least 2 tokens, got {}",
        tokens_.size());
}

std::int64_t EvalLoader::batches() const {
  const std::int64_t per_batch = batch_ * seq_;
  return (tokens_.size() - 1 + per_batch - 1) / per_batch;
}

Batch EvalLoader::batch(std::int64_t i) const {
  check(i >= 0 && i < batches(), "loader: evaluation batch must be in [0, {}), got {}", batches(),
        i);
  Batch out = empty_batch(batch_, seq_);
  auto* inputs = out.inputs.data<std::int32_t>();
  auto* targets = out.targets.data<std::int32_t>();
  const std::int64_t predictable = tokens_.size() - 1;
  for (std::int64_t r = 0; r < batch_; ++r) {
    const std::int64_t first = (i * batch_ + r) * seq_;
    const std::int64_t count = std::clamp<std::int64_t>(predictable - first, 0, seq_);
    fill_row(tokens_, first, count, seq_, inputs + r * seq_, targets + r * seq_);
  }
  return out;
}

std::pair<TokenStream, TokenStream> split_tokens(const TokenStream& tokens, double fraction) {
  check(fraction >= 0 && fraction < 1, "loader: val-fraction must be in [0, 1), got {}", fraction);
  const auto held = std::llround(static_cast<double>(tokens.size()) * fraction);
  const std::int64_t kept = tokens.size() - held;
  return {tokens.slice(0, kept), tokens.slice(kept, held)};
}

}  // namespace weft::data
