#pragma once
#include "weft/core/philox.h"
#include "weft/core/tensor.h"

namespace weft {

struct AttentionOptions {
  bool causal = false;      ///< query t sees keys up to t + S - T: the last query sees all of them
  std::int64_t window = 0;  ///< with causal: only that many latest keys, its own included; 0: all
  double scale = 0;         ///< of the scores; 0: 1 / sqrt(D)
  double dropout = 0;       ///< probability that a weight is zeroed; the others grow by 1 / (1 - p)
  /// Weight (b, h, t, s) is dropped by random number ((b H + h) T + t) S + s of this key.
  RandomKey key = {};
  /// The H of that number, for heads that are some of H: the key then begins with their first. 0:
  /// those of q.
  std::int64_t key_heads = 0;
  /// i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1]) of a packed row, and sees
  /// only itself. Empty sequences are legal. On the CPU or with q; a GPU's are read back once a
  /// call to be checked.
  Tensor cu_seqlens = {};
  bool cu_checked = false;  ///< they are known to split the tokens, and are not read for it
};

/// y = dropout(softmax(scale q k^T)) v for every head, block by block: memory is linear in T. Query
/// head h uses key head h / (H / Hkv). A query that sees no key gives 0 and gets no gradient.
///
/// Shapes   q (B, T, H, D), k (B, S, Hkv, D), v (B, S, Hkv, V) -> (B, T, H, V)
/// Dtypes   f32, f64, bf16, all alike; bf16 is computed in f32. On a GPU, with heads of 64 or 128,
///          bf16 products take the weights and the gradients of the scores rounded to bf16
/// Device   cpu, cuda (D and V at most 256); all on one device
/// Saves    q, k, v, y, and the logarithm of each row's sum of exponentials (B, H, T)
/// Throws   Error on operands that are not 4-D or disagree, H not a multiple of Hkv, a window
///          without causal, dropout outside [0, 1), cu_seqlens that do not split the tokens of a
///          row; once differentiable
/// Source   Dao et al. 2022, arXiv:2205.14135; Ainslie et al. 2023, arXiv:2305.13245 (grouped keys)
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options = {});

/// The same for a projection that holds the heads of the queries, the keys and the values of each
/// token one after the other. Its gradient is written where it belongs, not joined from three.
///
/// Shapes   packed (B, T, heads + 2 kv_heads, D) -> (B, T, heads, D)
/// Dtypes   as attention
/// Device   cpu, cuda
/// Saves    packed, y, and the logarithm of each row's sum of exponentials (B, H, T)
/// Throws   Error as attention, and on another number of heads; once differentiable
/// Source   as attention
Tensor attention_packed(const Tensor& packed, std::int64_t heads, std::int64_t kv_heads,
                        const AttentionOptions& options = {});

}  // namespace weft
