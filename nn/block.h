#pragma once
#include <functional>
#include <span>
#include <utility>

#include "weft/nn/child.h"
#include "weft/nn/dropout.h"
#include "weft/nn/feed_forward.h"
#include "weft/nn/mixer.h"
#include "weft/nn/norm.h"
#include "weft/nn/recompute.h"

namespace weft::nn {

/// The residual stream between blocks: x = residual + delta. The next norm adds the two in the same
/// pass over memory. `delta` is null before the first block. `aux` is the sum of the router losses
/// so far: a scalar; null without routers.
struct Stream {
  Tensor residual, delta, aux;
};

/// The output of the blocks and the final norm.
struct Trunk {
  Tensor hidden;  ///< final norm's output, the input of the head: (B, T, dim)
  Tensor aux;     ///< add it to the loss: a scalar; null in a model without routers
};

/// Pre-norm transformer block:  x += mixer(norm(x));  x += feed_forward(norm(x)).
///   nn::Block block(nn::LayerNorm(64), nn::Attention(64, 4), nn::Mlp(64, 256));
struct Block : Module {
  Norm attn_norm;
  Child<Mixer> mixer;
  Dropout attn_drop;  ///< on each branch's output, before it is added to the residual stream
  Norm mlp_norm;
  Child<FeedForward> feed_forward;
  Dropout mlp_drop;
  Recompute recompute = Recompute::none;  ///< norms here; full in run_blocks(); the rest in layers

  /// The second norm has the kind and width of the first.
  Block(Norm norm, Child<Mixer> mixer, Child<FeedForward> feed_forward, double dropout = 0);

  /// x (B, T, C) -> (B, T, C). For blocks without a router: its loss could not be returned.
  Tensor operator()(const Tensor& x, const TokenContext& context = {}) const;
  /// The same block on a split residual stream, with the router loss.
  Stream operator()(const Stream& x, const TokenContext& context = {}) const;
  /// The mixer or the feed-forward layer as a T; null if its type differs:
  ///   block.as<nn::Attention>()->qkv
  template <class T>
  T* as() const {
    if constexpr (std::is_base_of_v<Mixer, T>)
      return dynamic_cast<T*>(mixer.get());
    else
      return dynamic_cast<T*>(feed_forward.get());
  }
  void visit(Visitor& v) override;
  std::string describe() const override { return "Block"; }
};

/// Runs x through `blocks`; calls `before_use`, if not null, before each run of one, also when
/// backward runs it again, which it must outlive. The first block's entry in a cache is
/// context.layer. Of a block that recomputes in full, only the input is kept for backward; with a
/// cache, which has no backward, blocks recompute nothing.
Stream run_blocks(std::span<const Block> blocks, Stream x, TokenContext context,
                  const std::function<void(const Module&)>& before_use = {});

}  // namespace weft::nn
