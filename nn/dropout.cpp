#include "weft/nn/dropout.h"

#include "weft/autograd/dropout.h"
#include "weft/core/error.h"
#include "weft/core/random.h"

namespace weft::nn {

Dropout::Dropout(double p) : p(p) {
  check(p >= 0 && p <= 1, "dropout: p must be in [0, 1], got {}", p);
}

Tensor Dropout::operator()(const Tensor& x, const std::optional<TokenPart>& part) const {
  if (p == 0 || !is_training() || x.numel() == 0) return x;
  if (part) {
    check(part->is_part(x), "dropout: x must be the part's {} tokens, (1, {}, dim), got {}",
          part->count, part->count, x.shape());
    const auto token = static_cast<std::uint64_t>(x.dim(-1));
    RandomKey key = RandomScope::key_for(random_stream(),
                                         static_cast<std::uint64_t>(part->tokens) * token, token);
    key.first += static_cast<std::uint64_t>(part->first) * token;
    return dropout(x, p, key);
  }
  const auto row = static_cast<std::uint64_t>(x.ndim() ? x.numel() / x.dim(0) : 1);
  const auto token = static_cast<std::uint64_t>(x.ndim() ? x.dim(-1) : 1);
  return dropout(x, p, RandomScope::key_for(random_stream(), row, token));
}

void Dropout::drop_weights(weft::AttentionOptions& how, const Shard::Heads& heads,
                           const WeightTokens& tokens) const {
  if (p == 0 || !is_training()) return;
  how.dropout = p;
  how.key_heads = heads.all;
  how.key_rows = tokens.rows;
  const auto keys = static_cast<std::uint64_t>(tokens.keys / tokens.rows);
  RandomKey key = RandomScope::key_for(
      random_stream(), static_cast<std::uint64_t>(heads.all * tokens.queries) * keys, keys);
  key.first += static_cast<std::uint64_t>(heads.first * (tokens.queries / tokens.rows)) * keys;
  how.key = key;
}

std::string Dropout::describe() const { return message("Dropout({})", p); }

}  // namespace weft::nn
