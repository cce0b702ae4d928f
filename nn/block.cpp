#include "weft/nn/block.h"

#include "weft/autograd/elementwise.h"
#include "weft/core/error.h"

namespace weft::nn {

Block::Block(std::int64_t dim, std::int64_t heads, std::int64_t ffn, const BlockOptions& o)
    : options(o),
      attn_norm(o.norm, dim, o.norm_eps),
      mlp_norm(o.norm, dim, o.norm_eps),
      attn_drop(o.dropout),
      mlp_drop(o.dropout) {
  if (o.delta)
    delta.emplace(dim, *o.delta);
  else if (o.mla)
    mla.emplace(dim, heads, *o.mla);
  else
    attn.emplace(dim, heads, o.attention);
  if (o.moe)
    moe.emplace(dim, *o.moe);
  else
    mlp.emplace(dim, ffn, o.mlp);
}

// Tokens get to know of each other here and nowhere else.
Tensor Block::mix(const Tensor& x, const TokenContext& context) const {
  if (delta) return (*delta)(x, context);
  return mla ? (*mla)(x, context) : (*attn)(x, context);
}

Stream Block::operator()(const Stream& x, const TokenContext& context) const {
  Norm::Added in;
  if (x.delta)
    in = attn_norm(x.delta, x.residual);
  else
    in = {attn_norm(x.residual), x.residual};
  const Tensor a = attn_drop(mix(in.y, context), context.part);
  in.y = {};  // unrecorded passes give the memory back before the MLP needs its own
  Norm::Added mid = mlp_norm(a, in.sum);
  if (mlp) return {std::move(mid.sum), mlp_drop((*mlp)(mid.y), context.part), x.aux};
  MoeOutput out = (*moe)(mid.y, context);
  if (x.aux) out.loss = out.loss ? add(x.aux, out.loss) : x.aux;
  return {std::move(mid.sum), mlp_drop(out.y, context.part), std::move(out.loss)};
}

Tensor Block::operator()(const Tensor& x, const TokenContext& context) const {
  check(!moe, "block: a block with experts is called on a Stream, which carries its loss");
  const Stream out = (*this)(Stream{x, {}, {}}, context);
  return add(out.residual, out.delta);
}

void Block::visit(Visitor& v) {
  v("attn_norm", attn_norm);
  v("attn", attn);
  v("delta", delta);
  v("mla", mla);
  v("attn_drop", attn_drop);
  v("mlp_norm", mlp_norm);
  v("mlp", mlp);
  v("moe", moe);
  v("mlp_drop", mlp_drop);
}

Block Block::like() const {
  const std::int64_t heads = attn  ? attn->proj.weight.dim(1) / attn->head_dim
                             : mla ? mla->heads()
                                   : 1;
  const std::int64_t ffn = mlp ? mlp->down.weight.dim(1) : 0;
  return Block(attn_norm.weight.dim(0), heads, ffn, options);
}

}  // namespace weft::nn
