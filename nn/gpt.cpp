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

// The packing that a recompute region was given, made again from its inputs after the first two.
Packing packing_of(const TensorList& s, bool checked) {
  Packing out{s[2], s[3], s[4]};
  if (checked) out.mark_checked();
  return out;
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

// The tokens at places first, first + 1, ... , each of them `ahead` positions later.
Tensor Gpt::embed_tokens(const Tensor& ids, const Packing& packing, std::int64_t first,
                         std::int64_t ahead) const {
  check(ids.ndim() == 2, "gpt: ids must have shape (batch, tokens), got {}", ids.shape());
  const std::int64_t tokens = ids.dim(1);
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
    // Behind the end of a sequence there is nothing to predict: any position will do.
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
  return drop(shard && shard->enter ? shard->enter(x) : x);
}

std::optional<TokenPart> Gpt::part_of(const Tensor& ids, const KvCache* cache) const {
  const Shard::Tokens split = shard_of(*this).tokens;
  if (split.ranks == 1) return {};
  check(!cache, "gpt: tokens that are split over ranks cannot go with a cache");
  check(ids.ndim() == 2, "gpt: ids must have shape (batch, tokens), got {}", ids.shape());
  const std::int64_t n = ids.numel();
  check(n % split.ranks == 0,
        "gpt: the {} tokens of a batch of {} sequences do not divide among {} ranks", n, ids.dim(0),
        split.ranks);
  const std::int64_t count = n / split.ranks;
  return TokenPart{ids.dim(0), ids.dim(1), split.rank * count, count};
}

Trunk Gpt::run(const Tensor& ids, const Packing& packing, KvCache* cache) const {
  const TokenScope scope(part_of(ids, cache));
  Stream x{embed_tokens(ids, packing, cache ? cache->length() : 0), {}, {}};
  const RotaryTable* angles = rotary ? &*rotary : nullptr;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    about_to_use(block);
    if (config.recompute != Recompute::full || cache) {
      x = block(x, angles, packing, cache, static_cast<int>(i));
      continue;
    }
    const TensorList in{x.residual, x.delta, packing.cu_seqlens, packing.positions,
                        packing.padding};
    const Tensor aux = x.aux;
    x = {};
    // The block's own part of aux comes out; the sum stays outside.
    TensorList out = recompute(
        [&block, angles, known = packing.checked(), part = scope.part()](const TensorList& s) {
          const TokenScope again(part);
          Stream y = block(Stream{s[0], s[1], {}}, angles, packing_of(s, known));
          TensorList results{y.residual, y.delta};
          if (y.aux) results.push_back(y.aux);
          return results;
        },
        in);
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
  const RotaryTable* angles = rotary ? &*rotary : nullptr;
  const TokenScope scope(part_of(later, cache));
  Tensor e = embed_tokens(later, packing, cache ? cache->length() : 0, depth);
  if (config.mtp.detached) e = e.detach();
  if (config.recompute != Recompute::full || cache) {
    Trunk y = layer(e, h, angles, packing, cache);
    if (cache) cache->advance(later.dim(1));
    return y;
  }
  TensorList out = recompute(
      [&layer, angles, known = packing.checked(), part = scope.part()](const TensorList& s) {
        const TokenScope again(part);
        Trunk y = layer(s[0], s[1], angles, packing_of(s, known));
        TensorList results{y.hidden};
        if (y.aux) results.push_back(y.aux);
        return results;
      },
      TensorList{e, h, packing.cu_seqlens, packing.positions, packing.padding});
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
