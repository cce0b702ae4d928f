#pragma once
#include "weft/nn/attention.h"
#include "weft/nn/gated_delta_net.h"
#include "weft/nn/mla.h"
#include "weft/nn/mlp.h"
#include "weft/nn/moe.h"

namespace weft::nn {

struct BlockOptions {
  Norm::Kind norm = Norm::Kind::layer;
  double norm_eps = 1e-5;
  double dropout = 0;  ///< on what each branch adds to the residual stream
  AttentionOptions attention = {};
  // Set: the layer has this in the place of attention.
  std::optional<GatedDeltaNetOptions> delta = {};
  std::optional<MlaOptions> mla = {};
  MlpOptions mlp = {};
  std::optional<MoeOptions> moe = {};  ///< experts in place of the MLP
};

/// The residual stream between blocks: x = residual + delta. The sum is left to the next norm,
/// which adds and normalises in one pass. `delta` is null at the first block. `aux` is what the
/// routers of the blocks so far add to the loss: a scalar, null without any.
struct Stream {
  Tensor residual, delta, aux;
};

/// What comes out of the blocks.
struct Trunk {
  Tensor hidden;  ///< the final norm's output, before the head: (B, T, dim)
  Tensor aux;     ///< to be added to the loss: a scalar; null in a model without routers
};

/// Pre-norm transformer block:  x += attn(norm(x));  x += mlp(norm(x)), with a gated delta net in
/// the place of attention where the layer has one, and moe in that of mlp.
struct Block : Module {
  BlockOptions options;
  Norm attn_norm;
  std::optional<Attention> attn;
  std::optional<GatedDeltaNet> delta;
  std::optional<Mla> mla;
  Norm mlp_norm;
  std::optional<Mlp> mlp;  ///< one of these two
  std::optional<MoE> moe;
  Dropout attn_drop, mlp_drop;

  /// `ffn`: the width of the MLP, where there is one.
  Block(std::int64_t dim, std::int64_t heads, std::int64_t ffn, const BlockOptions& options = {});
  /// x (B, T, C) -> (B, T, C). For blocks without a router, whose loss would be lost.
  Tensor operator()(const Tensor& x, const TokenContext& context = {}) const;
  /// The same on the split stream.
  Stream operator()(const Stream& x, const TokenContext& context = {}) const;
  void visit(Visitor& v) override;
  std::string describe() const override { return "Block"; }
  Block like() const;

 private:
  Tensor mix(const Tensor& x, const TokenContext& context) const;
};

}  // namespace weft::nn
