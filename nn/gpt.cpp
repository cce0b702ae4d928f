#include "weft/nn/gpt.h"

#include <algorithm>
#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::nn {
namespace {

const GptConfig& checked(const GptConfig& config) {
  config.validate();
  return config;
}

BlockOptions block_options(const GptConfig& c, std::int64_t block) {
  const bool gpt2 = c.arch == Arch::gpt2;
  // What every block adds to the residual stream starts smaller, so that the sum over 2 * layers
  // branches keeps its scale. Source: Radford et al. 2019, section 2.3.
  const Init proj = Init::normal(0.02 / std::sqrt(2.0 * static_cast<double>(c.layers)));
  BlockOptions o;
  o.norm = gpt2 ? Norm::Kind::layer : Norm::Kind::rms;
  o.norm_eps = c.norm_eps;
  o.dropout = c.dropout;
  o.attention = {.kv_heads = c.kv_heads,
                 .bias = gpt2,
                 .qk_norm = c.qk_norm,
                 .norm_eps = c.norm_eps,
                 .window = c.window,
                 .dropout = c.dropout,
                 .proj_init = proj};
  if (c.attention == AttentionKind::mla) {
    o.mla = c.mla_options();
    o.mla->proj_init = proj;
  }
  if (c.is_delta(block)) {
    o.delta = c.delta_options();
    o.delta->proj_init = proj;
  }
  o.mlp = {.activation = !gpt2                  ? Activation::swiglu
                         : c.gelu == Gelu::tanh ? Activation::gelu_tanh
                                                : Activation::gelu_erf,
           .bias = gpt2,
           .recompute = c.recompute == Recompute::selective,
           .proj_init = proj};
  if (c.has_experts(block)) {
    o.moe = c.moe;
    o.moe->ffn = c.expert_ffn_dim();
    o.moe->activation = o.mlp.activation;
    o.moe->bias = gpt2;
    o.moe->recompute = o.mlp.recompute;
    o.moe->proj_init = proj;
  }
  return o;
}

// Runs `layer` on `in` and a context, keeping nothing but its inputs for backward. Tensors of the
// context are inputs of the region as well.
template <class F>
TensorList recompute_with(const TokenContext& context, TensorList in, const F& layer) {
  const int n = in.size();
  const Packing& p = context.packing;
  for (const Tensor& t : {p.cu_seqlens, p.positions, p.padding}) in.push_back(t);
  TokenContext rest = context;
  rest.packing = {};
  return recompute(
      [rest, n, layer, checked = p.checked()](const TensorList& s) {
        TokenContext here = rest;
        here.packing = {s[n], s[n + 1], s[n + 2]};
        if (checked) here.packing.mark_checked();
        return layer(s, here);
      },
      in);
}

}  // namespace

Gpt::Gpt(const GptConfig& c)
    : config(checked(c)),
      embed(c.vocab, c.dim),
      drop(c.dropout),
      norm(c.arch == Arch::gpt2 ? Norm::Kind::layer : Norm::Kind::rms, c.dim, c.norm_eps) {
  const bool mla = c.attention == AttentionKind::mla;
  if (c.arch == Arch::gpt2)
    positions.emplace(c.seq, c.dim);
  else
    rotary.emplace(c.seq, mla ? c.mla_options().rope : c.head_dim(), c.rope_theta);
  blocks.reserve(static_cast<std::size_t>(c.layers));
  for (std::int64_t i = 0; i < c.layers; ++i)
    blocks.emplace_back(c.dim, c.heads, c.ffn_dim(), block_options(c, i));
  if (c.tied())
    head.weight = embed.weight;
  else
    head = Linear(c.dim, c.vocab, {.bias = false, .init = Init::normal(0.02)});
  const std::int64_t depths =
      c.mtp.repeated ? std::min<std::int64_t>(c.mtp.depths, 1) : c.mtp.depths;
  mtp.reserve(static_cast<std::size_t>(depths));
  for (std::int64_t d = 0; d < depths; ++d) mtp.emplace_back(blocks.back().like());
  assign_names(*this);
}

void Gpt::visit(Visitor& v) {
  v("embed", embed);
  v("positions", positions);
  v("rotary", rotary);
  v("drop", drop);
  v("blocks", blocks);
  v("norm", norm);
  v("head", head);
  v("loss", loss);
  v("mtp", mtp);
}

TokenContext Gpt::context_of(const Tensor& ids, const Packing& packing, KvCache* cache) const {
  TokenContext context{.packing = packing, .rotary = rotary ? &*rotary : nullptr, .cache = cache};
  const Shard::Tokens split = shard_of(*this).tokens;
  if (split.ranks == 1) return context;
  check(!cache, "gpt: tokens that are split over ranks cannot go with a cache");
  check(ids.ndim() == 2, "gpt: ids must have shape (batch, tokens), got {}", ids.shape());
  const std::int64_t n = ids.numel();
  check(n % split.ranks == 0,
        "gpt: the {} tokens of a batch of {} sequences do not divide among {} ranks", n, ids.dim(0),
        split.ranks);
  const std::int64_t count = n / split.ranks;
  context.part = TokenPart{ids.dim(0), ids.dim(1), split.rank * count, count};
  return context;
}

// The tokens behind those in the cache, each of them `ahead` positions later.
Tensor Gpt::embed_tokens(const Tensor& ids, const TokenContext& context, std::int64_t ahead) const {
  check(ids.ndim() == 2, "gpt: ids must have shape (batch, tokens), got {}", ids.shape());
  const Packing& packing = context.packing;
  const std::int64_t tokens = ids.dim(1), first = context.cache ? context.cache->length() : 0;
  if (packing)
    packing.check_row(ids);
  else
    check(first + tokens <= config.seq, "gpt: at most seq {} tokens, got {}", config.seq,
          first + tokens);
  about_to_use(embed);
  if (positions) about_to_use(*positions);
  Tensor x = embed(ids);
  if (positions && packing) {
    const Tensor& at = packing.positions;
    // After the end of a sequence there is nothing to predict: any position will do.
    const Tensor later =
        ahead ? minimum(add(at, static_cast<double>(ahead)), static_cast<double>(config.seq - 1))
              : at;
    x = add(x, (*positions)(later));
  } else if (positions) {
    const std::int64_t from = std::min(first + ahead, config.seq);
    const std::int64_t rows = std::min(tokens, config.seq - from);
    const Tensor at = positions->weight.narrow(0, from, rows);
    x = add(x, rows < tokens ? pad(at, 0, 0, tokens - rows) : at);
  }
  return drop(shard && shard->enter ? shard->enter(x) : x, context.part);
}

Trunk Gpt::run(const Tensor& ids, const Packing& packing, KvCache* cache) const {
  TokenContext context = context_of(ids, packing, cache);
  Stream x{embed_tokens(ids, context), {}, {}};
  for (const Block& block : blocks) {
    about_to_use(block);
    if (config.recompute != Recompute::full || cache) {
      x = block(x, context);
      ++context.layer;
      continue;
    }
    const TensorList in{x.residual, x.delta};
    const Tensor aux = x.aux;
    x = {};
    // The block's own part of aux comes out; the sum stays outside.
    TensorList out =
        recompute_with(context, in, [&block](const TensorList& s, const TokenContext& here) {
          Stream y = block(Stream{s[0], s[1], {}}, here);
          TensorList results{y.residual, y.delta};
          if (y.aux) results.push_back(y.aux);
          return results;
        });
    x = {std::move(out[0]), std::move(out[1]), aux};
    if (out.size() > 2) x.aux = aux ? add(aux, out[2]) : std::move(out[2]);
  }
  about_to_use(norm);
  about_to_use(head);
  return {norm(x.delta, x.residual).y, std::move(x.aux)};
}

Trunk Gpt::trunk(const Tensor& ids, const Packing& packing) const {
  return run(ids, packing, nullptr);
}

Tensor Gpt::hidden(const Tensor& ids, const Packing& packing) const {
  Trunk t = run(ids, packing, nullptr);
  check(!t.aux,
        "gpt: hidden() would lose what the routers add to the loss; use losses() or trunk()");
  return std::move(t.hidden);
}

Trunk Gpt::mtp_trunk(int depth, const Tensor& later, const Tensor& h, const Packing& packing,
                     KvCache* cache) const {
  check(depth >= 1 && depth <= config.mtp.depths, "gpt: depth must be in [1, {}], got {}",
        config.mtp.depths, depth);
  const MtpDepth& layer = mtp[config.mtp.repeated ? 0 : static_cast<std::size_t>(depth - 1)];
  about_to_use(layer);
  const TokenContext context = context_of(later, packing, cache);
  Tensor e = embed_tokens(later, context, depth);
  if (config.mtp.detached) e = e.detach();
  if (config.recompute != Recompute::full || cache) {
    Trunk y = layer(e, h, context);
    if (cache) cache->advance(later.dim(1));
    return y;
  }
  TensorList out =
      recompute_with(context, {e, h}, [&layer](const TensorList& s, const TokenContext& here) {
        Trunk y = layer(s[0], s[1], here);
        TensorList results{y.hidden};
        if (y.aux) results.push_back(y.aux);
        return results;
      });
  return {std::move(out[0]), out.size() > 1 ? std::move(out[1]) : Tensor()};
}

Tensor Gpt::operator()(const Tensor& ids, const Packing& packing) const {
  const Tensor logits = head(hidden(ids, packing));
  return shard_of(*this).tokens.ranks > 1 ? logits.view({ids.dim(0), ids.dim(1), logits.dim(-1)})
                                          : logits;
}

Tensor Gpt::extend(const Tensor& ids, KvCache& cache) const {
  check(ids.ndim() == 2 && ids.dim(1) > 0,
        "gpt: decode needs ids of shape (batch, tokens) with at least 1 token, got {}",
        ids.shape());
  const NoGradGuard off;
  const Tensor h = run(ids, {}, &cache).hidden;
  cache.advance(ids.dim(1));
  return h;
}

Tensor Gpt::decode(const Tensor& ids, KvCache& cache) const {
  const Tensor h = extend(ids, cache);
  const NoGradGuard off;
  return head(h.select(1, h.dim(1) - 1));
}

std::string Gpt::describe() const {
  return message("Gpt({}, {} layers, {} heads, dim {}, seq {}, vocab {})",
                 config.arch == Arch::gpt2 ? "gpt2" : "llama", config.layers, config.heads,
                 config.dim, config.seq, config.vocab);
}

}  // namespace weft::nn
