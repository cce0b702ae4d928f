#include "weft/nn/block.h"

#include <optional>

#include "weft/autograd/discard.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/offload.h"
#include "weft/core/error.h"
#include "weft/core/profile.h"
#include "weft/nn/recompute_layer.h"

namespace weft::nn {

namespace {

/// Releases the output of a norm between forward and backward, where the block recomputes norms.
class NormOutput {
 public:
  explicit NormOutput(const Block& block) {
    if (has(block.recompute, Recompute::norms)) scope_.emplace();
  }
  // y = norm(sum), also where the norm has added sum up.
  void discard(const Norm& norm, Tensor y, const Tensor& sum) {
    if (scope_)
      scope_->discard(std::move(y), {sum}, [&norm](const TensorList& in) { return norm(in[0]); });
    scope_.reset();
  }

 private:
  std::optional<DiscardScope> scope_;
};

}  // namespace

Block::Block(Norm norm, Child<Mixer> m, Child<FeedForward> f, double dropout)
    : attn_norm(std::move(norm)),
      mixer(std::move(m)),
      attn_drop(dropout),
      mlp_norm(attn_norm.kind, attn_norm.weight.dim(0), attn_norm.eps),
      feed_forward(std::move(f)),
      mlp_drop(dropout) {}

Stream Block::operator()(const Stream& x, const TokenContext& context) const {
  NormOutput first(*this);
  Norm::Added in = [&]() -> Norm::Added {
    const ProfileScope scope("attn_norm");
    const fp8::ProducesFor next(mixer->fp8_reader());
    if (x.delta.defined()) return attn_norm(x.delta, x.residual);
    return {attn_norm(x.residual), x.residual};
  }();
  const Tensor a = [&] {
    const ProfileScope scope(mixer->name());
    return attn_drop((*mixer)(in.y, context), context.part);
  }();
  // Without recording, this frees its memory before the MLP allocates.
  first.discard(attn_norm, std::move(in.y), in.sum);
  NormOutput second(*this);
  Norm::Added mid = [&] {
    const ProfileScope scope("mlp_norm");
    const fp8::ProducesFor next(feed_forward->fp8_reader());
    return mlp_norm(a, in.sum);
  }();
  FeedForward::Output out = [&] {
    const ProfileScope scope(feed_forward->name());
    return feed_forward->forward(mid.y, context);
  }();
  second.discard(mlp_norm, std::move(mid.y), mid.sum);
  if (x.aux.defined()) out.loss = out.loss.defined() ? add(x.aux, out.loss) : x.aux;
  return {std::move(mid.sum), mlp_drop(out.y, context.part), std::move(out.loss)};
}

Tensor Block::operator()(const Tensor& x, const TokenContext& context) const {
  check(!feed_forward->has_loss(),
        "block: a block with experts is called on a Stream, which carries its loss");
  const Stream out = (*this)(Stream{x, {}, {}}, context);
  return add(out.residual, out.delta);
}

void Block::visit(Visitor& v) {
  v("attn_norm", attn_norm);
  v(mixer->name(), mixer);
  v("attn_drop", attn_drop);
  v("mlp_norm", mlp_norm);
  v(feed_forward->name(), feed_forward);
  v("mlp_drop", mlp_drop);
}

Stream run_blocks(std::span<const Block> blocks, Stream x, TokenContext context,
                  const std::function<void(const Module&)>& before_use) {
  OffloadLayers offload(std::ssize(blocks));
  for (const Block& block : blocks) {
    if (has(block.recompute, Recompute::full) && !context.has_cache()) {
      const TensorList in{x.residual, x.delta};
      const Tensor aux = x.aux;
      x = {};
      const auto* const use = before_use ? &before_use : nullptr;
      // The region returns only this block's aux; the running sum stays outside.
      TensorList out = detail::recompute_layer(
          context, in, [&block, use](const TensorList& s, const TokenContext& here) {
            if (use) (*use)(block);
            Stream y = block(Stream{s[0], s[1], {}}, here);
            TensorList results{y.residual, y.delta};
            if (y.aux.defined()) results.push_back(y.aux);
            return results;
          });
      x = {std::move(out[0]), std::move(out[1]), aux};
      if (out.size() > 2) x.aux = aux.defined() ? add(aux, out[2]) : std::move(out[2]);
    } else {
      if (before_use) before_use(block);
      x = block(x, context);
    }
    offload.end_layer();
    ++context.layer;
  }
  return x;
}

}  // namespace weft::nn
