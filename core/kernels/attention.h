#pragma once
#include "weft/core/philox.h"
#include "weft/core/tensor.h"

namespace weft {

/// Sizes and options of attention; see autograd/attention.h.
struct AttentionSpec {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0;
  std::int64_t head_dim = 0, value_dim = 0;  ///< of queries and keys, and of values
  bool causal = false;
  std::int64_t window = 0;  ///< 0: unlimited
  double scale = 1;
  double dropout = 0;
  RandomKey key = {};
  std::int64_t key_heads = 0;  ///< heads of a batch row as `key` counts them
  std::int64_t key_rows = 1;   ///< such rows side by side in a packed row
};

/// Distance in elements between consecutive tokens of t (B, T, H, D), whose tokens are evenly
/// spaced over all rows. With T = 1 this is the stride of axis 0: the stride of an axis of length 1
/// is arbitrary.
inline std::int64_t token_distance(const Tensor& t) {
  const Shape &n = t.shape(), &stride = t.strides();
  if (n[1] > 1) return stride[1];
  return n[0] > 1 ? stride[0] : n[2] * n[3];
}

// "real" is f64 for f64 tensors, else f32.

/// f32 or f64, on a GPU also bf16. A token is contiguous; tokens are token_distance() apart.
struct AttentionIn {
  const Tensor& q;           ///< (B, T, H, D)
  const Tensor& k;           ///< (B, S, Hkv, D)
  const Tensor& v;           ///< (B, S, Hkv, V)
  const Tensor& cu_seqlens;  ///< i32 (n + 1), or null
  Device device() const { return q.device(); }
};
struct AttentionOut {
  const Tensor& y;    ///< (B, T, H, V), like q, contiguous
  const Tensor& lse;  ///< (B, H, T), real: log of the sum of exponentials; -inf: no visible key
};
struct AttentionGrads {
  const Tensor& dq;       ///< like q
  const Tensor &dk, &dv;  ///< like k and v, with the same number of heads between their tokens
  const Tensor& scratch;  ///< real, attention_scratch() elements on a GPU; null on the CPU
};
using AttentionFwd = void(const AttentionIn& in, const AttentionSpec& spec,
                          const AttentionOut& out);
/// `forward`: what the forward kernel wrote. dy (B, T, H, V) is contiguous.
using AttentionBwd = void(const AttentionIn& in, const AttentionSpec& spec,
                          const AttentionOut& forward, const Tensor& dy, const AttentionGrads& out);

inline constexpr std::int64_t kAttentionPad = 64;
/// Two numbers per row of scores, with the rows of a head padded to whole tiles.
constexpr std::int64_t attention_scratch(const AttentionSpec& a) {
  return a.batch * a.heads * ((a.queries + kAttentionPad - 1) / kAttentionPad * kAttentionPad) * 2;
}

/// The widest head that the CUDA kernels support.
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
