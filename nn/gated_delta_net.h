#pragma once
#include "weft/nn/linear.h"
#include "weft/nn/mixer.h"
#include "weft/nn/norm.h"

namespace weft::nn {

struct GatedDeltaNetOptions {
  std::int64_t key_heads = 1;
  std::int64_t value_heads = 1;               ///< a multiple of key_heads; several share a key head
  std::int64_t key_dim = 64, value_dim = 64;  ///< size of a head
  std::int64_t conv = 4;                      ///< taps of the convolution over tokens
  double norm_eps = 1e-6;                     ///< of the norm after the delta rule
  Init init = Init::normal(0.02);
  Init proj_init = Init::normal(0.02);

  /// Throws Error that names the first violated rule.
  void validate() const;
};

/// Gated delta net, a mixer in place of attention:  x (B, T, C) -> (B, T, C). It remembers past
/// tokens in one matrix per head, whose size does not grow with the number of tokens.
///
///   q, k, v, z, b, a = in_proj(x);  q, k, v = silu(conv(q, k, v))
///   g = -exp(a_log) softplus(a + dt_bias);  beta = sigmoid(b)
///   y = out_proj(norm(gated_delta(q / |q|, k / |k|, v, g, beta)) silu(z))
///
/// Source: Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, section 3.4.
struct GatedDeltaNet : Mixer {
  GatedDeltaNetOptions options;
  Linear in_proj;   // (2 Hk K + 2 Hv V + 2 Hv, C), rows in the order q, k, v, z, b, a
  Tensor conv;      // (2 Hk K + Hv V, taps)
  Tensor a_log;     // (Hv), f32 in every model
  Tensor dt_bias;   // (Hv), f32 in every model
  RMSNorm norm;     // (V)
  Linear out_proj;  // (C, Hv V)
  // A shard has some of the heads, in all of these but the norm.

  explicit GatedDeltaNet(std::int64_t dim, const GatedDeltaNetOptions& options);
  void visit(Visitor& v) override;
  std::string describe() const override;
  Handles handles() const override { return {.packing = true, .part = true}; }
  const char* name() const override { return "delta"; }
  KvCache::Entry cache_entry(std::int64_t batch, std::int64_t capacity, DType dtype,
                             Device device) const override;
  double multiply_adds(std::int64_t tokens) const override;

  /// Channels of the convolution: all of q, k and v.
  static std::int64_t channels(const GatedDeltaNetOptions& o) {
    return 2 * o.key_heads * o.key_dim + o.value_heads * o.value_dim;
  }
  /// Heads that are here: all, or those of this rank's shard.
  std::int64_t own_value_heads() const { return a_log.dim(0); }
  std::int64_t own_key_heads() const {
    return own_value_heads() / (options.value_heads / options.key_heads);
  }
  /// Rows of in_proj.
  static std::int64_t inputs(const GatedDeltaNetOptions& o) {
    return channels(o) + o.value_heads * o.value_dim + 2 * o.value_heads;
  }

 protected:
  Tensor mix(const Tensor& x, const TokenContext& context) const override;
};

}  // namespace weft::nn
