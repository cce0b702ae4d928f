#pragma once
#include "weft/data/dataset.h"
#include "weft/data/token_file.h"

namespace weft::data {

/// Windows of seq + 1 tokens, starting every seq tokens, so that each token except the first is a
/// target once.
class TokenWindows : public Dataset {
 public:
  /// How the tokens after the last full window are used: not at all, or in a row padded with input
  /// 0 and target kIgnore.
  enum class Tail : std::uint8_t { dropped, padded };
  /// Throws Error unless there is at least one window and one target.
  TokenWindows(TokenStream tokens, std::int64_t seq, Tail tail = Tail::dropped);

  std::int64_t size() const override { return size_; }
  Batch rows(std::span<const std::int64_t> numbers) const override;
  void will_read(std::span<const std::int64_t> numbers) const override;
  std::vector<std::pair<std::string, std::int64_t>> identity() const override {
    return {{"seq", seq_}, {"tokens", tokens_.size()}};
  }
  bool allows_padding() const override { return true; }
  bool changed() const override { return tokens_.changed(); }
  void check_unchanged() const override { tokens_.check_unchanged(); }

 private:
  TokenStream tokens_;
  std::int64_t seq_, size_;
};

/// How many tokens at the end are held out. Throws Error unless 0 <= fraction < 1.
std::int64_t held_out_size(std::int64_t tokens, double fraction);

/// (training part, held-out part): the last `fraction` of the tokens is held out.
/// Throws Error unless 0 <= fraction < 1.
std::pair<TokenStream, TokenStream> split_tokens(const TokenStream& tokens, double fraction);

}  // namespace weft::data
