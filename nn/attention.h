#pragma once
#include "weft/nn/dropout.h"
#include "weft/nn/linear.h"
#include "weft/nn/mixer.h"
#include "weft/nn/norm.h"
#include "weft/nn/rotary.h"

namespace weft::nn {

struct AttentionOptions {
  std::int64_t kv_heads = 0;  ///< 0: as many as heads; 1: multi-query; between: grouped-query
  std::int64_t head_dim = 0;  ///< elements of a head; 0: dim / heads
  bool bias = true;           ///< of the projections
  std::optional<bool> proj_bias = {};  ///< of that of the output; unset: like the others
  bool qk_norm = false;                ///< RMS norm over each head of q and k before the rotation
  bool qk_norm_joint = false;          ///< qk_norm over all heads of q and over all of k
  bool zero_centered_norm = false;     ///< qk_norm multiplies by 1 + its weight
  double norm_eps = 1e-5;              ///< of qk_norm
  double clip = 0;     ///< q, k and v are clamped to [-clip, clip] before the rotation; 0: off
  bool causal = true;  ///< false: a token also sees the tokens after it, as in an encoder
  bool gate = false;   ///< multiply the output by the sigmoid of a gate, as wide as q
  std::int64_t window =
      0;               ///< causal: a token sees its latest `window` tokens, itself included; 0: all
  double dropout = 0;  ///< on the attention weights
  bool one_projection = false;  ///< an adapter is of q, k and v together, as in GPT-2
  bool recompute = false;       ///< backward computes attention's output again, see DiscardScope
  Init init = Init::normal(0.02);
  Init proj_init = Init::normal(0.02);
};

/// Self-attention, causal by default:  x (B, T, C) -> (B, T, C). q, k and v come from one packed
/// projection; with `gate` each head of q is followed by its gate. A rotary table narrower than a
/// head rotates the elements at its start. The number of heads follows from the weights, so a shard
/// with fewer heads uses the same code.
struct Attention : Mixer {
  AttentionOptions options;
  std::int64_t head_dim;
  Linear qkv;   // (H*D + 2*Hkv*D, C); with a gate (2*H*D + 2*Hkv*D, C)
  Linear proj;  // (C, H*D)
  std::optional<Norm> q_norm, k_norm;
  Dropout drop;

  Attention(std::int64_t dim, std::int64_t heads, const AttentionOptions& options = {});
  void visit(Visitor& v) override;
  std::string describe() const override;
  Handles handles() const override {
    return {.packing = true, .rows = true, .part = true, .mask = true};
  }
  unsigned shard_members() const override { return Shard::kHeads; }
  const char* name() const override { return "attn"; }
  KvCache::Entry cache_entry(std::int64_t batch, std::int64_t capacity, DType dtype,
                             Device device) const override;
  const fp8::LayerState* fp8_reader() const override { return qkv.fp8_reader(); }
  double multiply_adds(std::int64_t tokens) const override;
  std::int64_t heads() const { return proj.weight.dim(1) / head_dim; }
  std::int64_t kv_heads() const {
    return (qkv.weight.dim(0) / head_dim - heads() * (options.gate ? 2 : 1)) / 2;
  }

 protected:
  Tensor mix(const Tensor& x, const TokenContext& context) const override;

 private:
  /// What mix() does with qkv(x); `project` is applied to the heads' values (B, T, H*D).
  template <class F>
  Tensor mixed(Tensor projected, const TokenContext& context, const F& project) const;
  Tensor normed(const std::optional<Norm>& norm, const Tensor& heads) const;
  Tensor clipped(const Tensor& x) const;
};

/// The mean number of keys that a query of a causal sequence sees; window 0: all before it.
double mean_keys(std::int64_t tokens, std::int64_t window);

}  // namespace weft::nn
