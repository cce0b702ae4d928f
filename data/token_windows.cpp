#include "weft/data/token_windows.h"

#include <algorithm>
#include <cmath>

#include "weft/core/error.h"

namespace weft::data {

TokenWindows::TokenWindows(TokenStream tokens, std::int64_t seq, Tail tail)
    : tokens_(std::move(tokens)), seq_(seq) {
  check(seq >= 1, "token windows: seq must be at least 1, got {}", seq);
  check(tail == Tail::padded || tokens_.size() > seq,
        "token windows: the data has {} tokens, a sequence needs {} (seq {} + 1); use a shorter "
        "--seq or more data",
        tokens_.size(), seq + 1, seq);
  check(tokens_.size() >= 2, "token windows: held-out data must have at least 2 tokens, got {}",
        tokens_.size());
  size_ = (tokens_.size() - 1) / seq;
  if (tail == Tail::padded && size_ * seq < tokens_.size() - 1) ++size_;
}

Batch TokenWindows::rows(std::span<const std::int64_t> numbers) const {
  const Shape shape{static_cast<std::int64_t>(numbers.size()), seq_};
  Batch out{Tensor::empty(shape, DType::i32), Tensor::empty(shape, DType::i32), {}};
  auto* inputs = out.inputs.data<std::int32_t>();
  auto* targets = out.targets.data<std::int32_t>();
  std::vector<std::int32_t> row(static_cast<std::size_t>(seq_) + 1);  // one read for inputs and
                                                                      // targets
  for (const std::int64_t i : numbers) {
    check(0 <= i && i < size_, "token windows: a row must be in [0, {}), got {}", size_, i);
    const std::int64_t count = std::min(seq_, tokens_.size() - 1 - i * seq_);
    tokens_.read(i * seq_, std::span(row).first(static_cast<std::size_t>(count) + 1));
    std::copy_n(row.begin(), count, inputs);
    std::copy_n(row.begin() + 1, count, targets);
    std::fill(inputs + count, inputs + seq_, 0);
    std::fill(targets + count, targets + seq_, kIgnore);
    inputs += seq_;
    targets += seq_;
  }
  return out;
}

void TokenWindows::will_read(std::span<const std::int64_t> numbers) const {
  for (const std::int64_t i : numbers)
    tokens_.will_read(i * seq_, std::min(seq_ + 1, tokens_.size() - i * seq_));
}

std::int64_t held_out_size(std::int64_t tokens, double fraction) {
  check(fraction >= 0 && fraction < 1, "loader: val-fraction must be in [0, 1), got {}", fraction);
  return std::llround(static_cast<double>(tokens) * fraction);
}

std::pair<TokenStream, TokenStream> split_tokens(const TokenStream& tokens, double fraction) {
  const std::int64_t held = held_out_size(tokens.size(), fraction);
  const std::int64_t kept = tokens.size() - held;
  return {tokens.slice(0, kept), tokens.slice(kept, held)};
}

}  // namespace weft::data
