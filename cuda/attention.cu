#include <algorithm>
#include <cmath>

#include "weft/core/error.h"
#include "weft/cuda/attention_args.h"

namespace weft::cuda {

AttentionArgs attention_args(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& cu_seqlens, const AttentionSpec& a) {
  constexpr std::int64_t kMost = 1 << 29;
  check(a.queries < kMost && a.keys < kMost,
        "attention: a GPU takes fewer than {} tokens a row, got {} and {}", kMost, a.queries,
        a.keys);
  return {.queries = static_cast<int>(a.queries),
          .keys = static_cast<int>(a.keys),
          .heads = static_cast<int>(a.heads),
          .kv_heads = static_cast<int>(a.kv_heads),
          .head_dim = static_cast<int>(a.head_dim),
          .window = static_cast<int>(std::min(a.window, kMost)),
          .causal = a.causal,
          .cu_seqlens = data_or_null<std::int32_t>(cu_seqlens),
          .sequences = cu_seqlens ? static_cast<int>(cu_seqlens.numel()) - 1 : 0,
          .scale = a.scale,
          .ldq = q.strides()[1],
          .ldk = k.strides()[1],
          .ldv = v.strides()[1],
          .drop_below = static_cast<std::uint32_t>(std::ceil(a.dropout * 0x1p24)),
          .kept = 1 / (1 - a.dropout),
          .key = a.key};
}

void attention_fwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                   const AttentionSpec& spec, const Tensor& y, const Tensor& lse) {
  generic::attention_fwd(q, k, v, cu_seqlens, spec, y, lse);
}

}  // namespace weft::cuda
