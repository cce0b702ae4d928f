#include "weft/autograd/masked_attention.h"

#include <limits>

#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/logic.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/softmax.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::detail {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

bool broadcasts(const Shape& mask, const Shape& scores) {
  if (mask.empty() || mask.size() > scores.size()) return false;
  for (int i = 1; i <= mask.size(); ++i)
    if (mask[mask.size() - i] != 1 && mask[mask.size() - i] != scores[scores.size() - i])
      return false;
  return true;
}

void check_mask(const Tensor& mask, const Tensor& q, const Shape& scores) {
  check(mask.dtype() == DType::boolean || mask.dtype() == q.dtype(),
        "attention: mask must be bool, or numbers of the dtype of q, {}, got {}", q.dtype(),
        mask.dtype());
  check(mask.device() == q.device(), "attention: mask must be on the device of q, {}, got {}",
        q.device(), mask.device());
  check(broadcasts(mask.shape(), scores),
        "attention: mask must have axes that broadcast to (batch, heads, queries, keys) {}, got {}",
        scores, mask.shape());
}

// The keys that the order of tokens lets a query see, (T, S).
Tensor seen_in_order(const AttentionSpec& s, Device device) {
  const auto count = [&](std::int64_t first, std::int64_t n) {
    return Tensor::arange(static_cast<double>(first), static_cast<double>(first + n), 1, DType::i64,
                          device);
  };
  const Tensor key = count(0, s.keys).unsqueeze(0);
  const Tensor last = count(s.keys - s.queries, s.queries).unsqueeze(1);
  const Tensor before = le(key, last);
  return s.window > 0 ? logical_and(before, gt(add(key, s.window), last)) : before;
}

// Drops weights (B, H, T, S) by the key's numbers, which count the heads of all shards.
Tensor dropped(const Tensor& weights, const AttentionSpec& s) {
  if (s.key_heads == s.heads) return dropout(weights, s.dropout, s.key);
  TensorList rows;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    RandomKey key = s.key;
    key.first += static_cast<std::uint64_t>(b * s.key_heads * s.queries * s.keys);
    rows.push_back(dropout(narrow(weights, 0, b, 1), s.dropout, key));
  }
  return s.batch > 0 ? cat(rows, 0) : weights;
}

}  // namespace

Tensor masked_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionSpec& s,
                        const Tensor& mask) {
  const std::int64_t B = s.batch, T = s.queries, S = s.keys, G = s.kv_heads, R = s.heads / G;
  check_mask(mask, q, {B, s.heads, T, S});
  const DType real = is_half(q.dtype()) ? DType::f32 : q.dtype();
  const bool is_bool = mask.dtype() == DType::boolean;

  Tensor seen = is_bool ? mask : ne(mask, kHidden);
  if (s.causal) seen = logical_and(seen, seen_in_order(s, q.device()));
  const Tensor hidden = logical_not(seen);

  // Query heads that share a key head lie side by side: (B, G, R, T, D) x (B, G, 1, D, S).
  const Tensor queries =
      mul(cast(q, real), s.scale).reshape({B, T, G, R, s.head_dim}).permute({0, 2, 3, 1, 4});
  const Tensor keys = cast(k, real).unsqueeze(3).permute({0, 2, 3, 4, 1});
  const Tensor values = cast(v, real).unsqueeze(3).permute({0, 2, 3, 1, 4});
  Tensor scores = matmul(queries, keys).view({B, s.heads, T, S});
  if (!is_bool) scores = add(scores, masked_fill(cast(mask, real), eq(mask, kHidden), 0));
  // A query that sees nothing keeps its scores, so that no softmax is of infinities alone.
  const Tensor drops = logical_and(hidden, any(seen, -1, true));
  Tensor weights = masked_fill(softmax(masked_fill(scores, drops, kHidden)), hidden, 0);
  if (s.dropout > 0) weights = dropped(weights, s);
  const Tensor y = matmul(weights.view({B, G, R, T, S}), values);
  // Callers join the heads with view(), as after the kernel.
  const Tensor tokens = contiguous(cast(y.permute({0, 3, 1, 2, 4}), q.dtype()));
  return tokens.view({B, T, s.heads, s.value_dim});
}

}  // namespace weft::detail
