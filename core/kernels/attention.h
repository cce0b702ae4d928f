#pragma once
#include "weft/core/philox.h"
#include "weft/core/tensor.h"

namespace weft {

/// What the attention kernels compute; see autograd/attention.h.
struct AttentionSpec {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0;
  std::int64_t head_dim = 0, value_dim = 0;  ///< of queries and keys, and of values
  bool causal = false;
  std::int64_t window = 0;  ///< 0: unlimited
  double scale = 1;
  double dropout = 0;
  RandomKey key = {};
  std::int64_t key_heads = 0;  ///< of a batch row in the numbers of the key
};

/// Distance in elements between consecutive tokens of t (B, T, H, D), whose tokens are evenly
/// spaced over all rows. With T = 1 this is the stride of axis 0: the stride of an axis of length 1
/// is arbitrary.
inline std::int64_t token_distance(const Tensor& t) {
  const Shape &n = t.shape(), &stride = t.strides();
  if (n[1] > 1) return stride[1];
  return n[0] > 1 ? stride[0] : n[2] * n[3];
}

/// q (B, T, H, D), k (B, S, Hkv, D), v (B, S, Hkv, V): f32 or f64, on a GPU bf16 too, tokens
/// without gaps inside, at any token_distance() from each other. cu_seqlens: i32 (n + 1)
/// or null. Fills y (B, T, H, V), in the dtype of q, and lse (B, H, T), f64 for f64 and else f32:
/// the logarithm of each row's sum of exponentials (-inf: the query sees no key).
using AttentionFwd = void(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& cu_seqlens, const AttentionSpec& spec, const Tensor& y,
                          const Tensor& lse);
/// dy and y without gaps; dq, dk and dv as q, k and v, with as many heads from one token
/// of dk and of dv to the next. They are overwritten. scratch: attention_scratch()
/// elements of lse's dtype on a GPU; not looked at on the CPU.
using AttentionBwd = void(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& cu_seqlens, const AttentionSpec& spec, const Tensor& y,
                          const Tensor& lse, const Tensor& dy, const Tensor& scratch,
                          const Tensor& dq, const Tensor& dk, const Tensor& dv);

inline constexpr std::int64_t kAttentionPad = 64;
/// Two numbers for each row of scores, the rows of a head padded to whole tiles.
constexpr std::int64_t attention_scratch(const AttentionSpec& a) {
  return a.batch * a.heads * ((a.queries + kAttentionPad - 1) / kAttentionPad * kAttentionPad) * 2;
}

/// The widest head that the CUDA kernels take.
inline constexpr std::int64_t kAttentionMaxDim = 256;

namespace cpu {
AttentionFwd attention_fwd;
AttentionBwd attention_bwd;
}  // namespace cpu
namespace cuda {
AttentionFwd attention_fwd;
AttentionBwd attention_bwd;
}  // namespace cuda

}  // namespace weft
