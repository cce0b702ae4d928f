#pragma once
#include <functional>
#include <span>
#include <utility>

#include "weft/nn/dropout.h"
#include "weft/nn/feed_forward.h"
#include "weft/nn/mixer.h"
#include "weft/nn/norm.h"

namespace weft::nn {

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

/// Pre-norm transformer block:  x += mixer(norm(x));  x += feed_forward(norm(x)).
///   nn::Block block(nn::LayerNorm(64), nn::Attention(64, 4), nn::Mlp(64, 256));
struct Block : Module {
  Norm attn_norm;
  std::unique_ptr<Mixer> mixer;
  Dropout attn_drop;  ///< on what each branch adds to the residual stream
  Norm mlp_norm;
  std::unique_ptr<FeedForward> feed_forward;
  Dropout mlp_drop;

  /// The second norm is like the first.
  Block(Norm norm, std::unique_ptr<Mixer> mixer, std::unique_ptr<FeedForward> feed_forward,
        double dropout = 0);
  template <class M, class F>
  requires std::is_base_of_v<Mixer, M> && std::is_base_of_v<FeedForward, F> Block(
      Norm norm, M mixer, F feed_forward, double dropout = 0)
      : Block(std::move(norm), std::make_unique<M>(std::move(mixer)),
              std::make_unique<F>(std::move(feed_forward)), dropout) {}

  /// x (B, T, C) -> (B, T, C). For blocks without a router, whose loss would be lost.
  Tensor operator()(const Tensor& x, const TokenContext& context = {}) const;
  /// The same on the split stream.
  Stream operator()(const Stream& x, const TokenContext& context = {}) const;
  /// The mixer or the feed-forward layer as a T; null when it is another one:
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
  Block like() const;
};

/// x through all blocks of a list, with `before_use` (null: none) called before each. The first
/// block's entry in a cache is context.layer. With `recompute` backward keeps only what goes into
/// each block; not for a pass with a cache.
Stream run_blocks(std::span<const Block> blocks, Stream x, TokenContext context,
                  bool recompute = false,
                  const std::function<void(const Module&)>& before_use = {});

}  // namespace weft::nn
