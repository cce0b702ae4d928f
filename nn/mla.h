#pragma once
#include "weft/nn/dropout.h"
#include "weft/nn/linear.h"
#include "weft/nn/mixer.h"
#include "weft/nn/norm.h"
#include "weft/nn/rotary.h"

namespace weft::nn {

struct MlaOptions {
  std::int64_t q_lora = 0;   ///< width of the queries' latent; 0: queries come from x
  std::int64_t kv_lora = 0;  ///< width of the keys' and values' latent; a cache stores only it and
                             ///< the rotated key of each token
  std::int64_t nope = 0;     ///< elements of a query or key head without position
  std::int64_t rope = 0;     ///< rotated elements of a head; all heads share the key's
  std::int64_t v_head = 0;   ///< elements of a value head
  double norm_eps = 1e-6;    ///< of the norms of both latents
  std::int64_t window = 0;   ///< a token sees its latest `window` tokens, itself included; 0: all
  double scale_factor = 1;   ///< of the scores, besides 1 / sqrt(nope + rope)
  double dropout = 0;        ///< on the attention weights
  bool recompute = false;    ///< backward computes attention's output again, see DiscardScope
  Init init = Init::normal(0.02);
  Init proj_init = Init::normal(0.02);
};

/// Multi-head latent attention:  x (B, T, C) -> (B, T, C), causal.
///
///   q = q_up(q_norm(q_down(x)));  latent, shared = kv_down(x);  k, v = kv_up(kv_norm(latent))
///   y = proj(attention([q, rope(q')], [k, rope(shared)], v))
///
/// with scores multiplied by scale_factor / sqrt(nope + rope).
/// Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.
struct Mla : Mixer {
  MlaOptions options;
  std::optional<Linear> q_down;   // (q_lora, C)
  std::optional<RMSNorm> q_norm;  // (q_lora)
  Linear q_up;                    // (H (nope + rope), q_lora or C)
  Linear kv_down;                 // (kv_lora + rope, C)
  RMSNorm kv_norm;                // (kv_lora)
  Linear kv_up;                   // (H (nope + v_head), kv_lora)
  Linear proj;                    // (C, H v_head)
  Dropout drop;

  Mla(std::int64_t dim, std::int64_t heads, const MlaOptions& options);
  void visit(Visitor& v) override;
  std::string describe() const override;
  Handles handles() const override { return {.packing = true, .part = true}; }
  unsigned shard_members() const override { return Shard::kEnter | Shard::kHeads; }
  const char* name() const override { return "mla"; }
  KvCache::Entry cache_entry(std::int64_t batch, std::int64_t capacity, DType dtype,
                             Device device) const override;
  const fp8::LayerState* fp8_reader() const override;
  double multiply_adds(std::int64_t tokens) const override;
  std::int64_t heads() const { return q_up.weight.dim(0) / (options.nope + options.rope); }

 protected:
  /// Needs a rotary table with angles for `rope` elements. Keys and values of cached tokens are
  /// recomputed from their latents.
  Tensor mix(const Tensor& x, const TokenContext& context) const override;
};

}  // namespace weft::nn
