#pragma once
#include <optional>

#include "weft/core/philox.h"
#include "weft/core/tensor.h"

namespace weft {

struct AttentionOptions {
  bool causal = false;      ///< query t sees keys up to t + S - T: the last query sees all keys
  std::int64_t window = 0;  ///< with causal: how many of the latest keys a query sees; 0: all
  double scale = 0;         ///< multiplies the scores; 0: 1 / sqrt(D)
  double dropout = 0;  ///< probability that a weight is zeroed; scales the others by 1 / (1 - p)
  /// Weight (b, h, t, s) is dropped or kept by random number ((b H + h) T + t) S + s of this key.
  /// Unset: next_random_key().
  std::optional<RandomKey> key = {};
  /// The H of that formula when q holds only a shard of the heads; `key` then starts at the first
  /// head of the shard. 0: the heads of q.
  std::int64_t key_heads = 0;
  /// i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1]) of a packed row. A token
  /// sees only its own sequence; sequences may be empty. On the CPU or on the device of q; each
  /// call copies values on a GPU to the host to check them.
  Tensor cu_seqlens = {};
  bool cu_checked = false;  ///< cu_seqlens is known to be valid: its values are not read back
  /// How many equally long rows lie side by side in a packed row. The formula of `key` numbers them
  /// as rows b of their own, of T tokens. No sequence may cross two of them; that is not checked.
  std::int64_t key_rows = 1;
  /// Broadcasts to (B, H, T, S). bool: whether a query sees a key, besides causal and window.
  /// Numbers of q's dtype: added to the scaled scores; -infinity hides the key. A mask that is
  /// learned gets a gradient. With a mask attention is composed of products and a softmax over all
  /// of (B, H, T, S): memory grows with T S.
  Tensor mask = {};
};

/// y = dropout(softmax(scale q k^T)) v for every head, block by block: memory is linear in T. Query
/// head h uses key head h / (H / Hkv). A query that sees no key gives 0 and gets no gradient.
///
/// Shapes   q (B, T, H, D), k (B, S, Hkv, D), v (B, S, Hkv, V) -> (B, T, H, V)
/// Dtypes   f32, f64, bf16, f16, all operands alike; 16 bits are computed in f32. On a GPU, with
///          heads of 64 or 128, products in 16 bits round the weights and the gradients of the
///          scores to that dtype
/// Device   cpu, cuda (D and V at most 256); all on one device
/// Saves    q, k, v, y, and the log-sum-exp of each row (B, H, T); with a mask what its ops save
/// Throws   Error on operands that are not 4-D or whose shapes disagree, H not a multiple of Hkv, a
///          window without causal, dropout outside [0, 1), cu_seqlens that do not split the tokens
///          of a row, key_rows that do not divide a packed row, a mask that does not broadcast, or
///          with cu_seqlens; once differentiable, with a mask any number of times
/// Source   Dao et al. 2022, arXiv:2205.14135; Ainslie et al. 2023, arXiv:2305.13245 (grouped keys)
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options = {});

/// attention() on a packed projection: each token has the heads of q, then k, then v. Backward
/// writes one gradient tensor for the whole projection; nothing is concatenated.
///
/// Shapes   packed (B, T, heads + 2 kv_heads, D) -> (B, T, heads, D)
/// Dtypes   as attention
/// Device   cpu, cuda
/// Saves    packed, y, and the log-sum-exp of each row (B, H, T)
/// Throws   Error as attention, and when the axis of heads has another length; once differentiable
/// Source   as attention
Tensor attention_packed(const Tensor& packed, std::int64_t heads, std::int64_t kv_heads,
                        const AttentionOptions& options = {});

}  // namespace weft
