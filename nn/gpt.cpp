#include "weft/nn/gpt.h"

#include <algorithm>
#include <optional>

#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/core/profile.h"
#include "weft/core/random.h"
#include "weft/nn/gpt_layers.h"
#include "weft/nn/token_embedding.h"

namespace weft::nn {
namespace {

const GptConfig& checked(const GptConfig& config) {
  config.validate();
  return config;
}

void check_new_tokens(const Tensor& ids) {
  check(ids.ndim() == 2 && ids.dim(1) > 0,
        "gpt: decode needs ids of shape (batch, tokens) with at least 1 token, got {}",
        ids.shape());
}

}  // namespace

Gpt::Gpt(const GptConfig& c)
    : config(checked(c)), embed(c.vocab, c.dim), drop(c.dropout), norm(make_norm(c)) {
  if (c.position_kind() == Positions::learned)
    positions.emplace(c.seq, c.dim);
  else if (c.position_kind() == Positions::rope)
    rotary.emplace(c.seq, c.rotated(), c.rope_theta, c.rope_scaling);
  blocks.reserve(static_cast<std::size_t>(c.layers));
  for (std::int64_t i = 0; i < c.layers; ++i) blocks.push_back(make_block(c, i));
  if (c.tied())
    head.weight = embed.weight;
  else
    head = Linear(c.dim, c.vocab, {.bias = false, .init = Init::normal(0.02)});
  head.in_fp8 = false;
  const std::int64_t depths =
      c.mtp.repeated ? std::min<std::int64_t>(c.mtp.depths, 1) : c.mtp.depths;
  mtp.reserve(static_cast<std::size_t>(depths));
  for (std::int64_t d = 0; d < depths; ++d) mtp.emplace_back(make_block(c, c.layers - 1));
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

// `ids` follow the tokens in the cache; their positions are shifted by `ahead`.
Tensor Gpt::embed_tokens(const Tensor& ids, const TokenContext& context, std::int64_t ahead) const {
  const ProfileScope scope("embed");
  const Tensor x = nn::embed_tokens(embed, positions ? &*positions : nullptr, ids, context,
                                    config.seq, ahead, shard_of(*this).before_use);
  return drop(shard && shard->enter ? shard->enter(x) : x, context.part);
}

Trunk Gpt::run(const Tensor& ids, const TokenContext& context) const {
  Stream x =
      run_blocks(blocks, {embed_tokens(ids, context), {}, {}}, context, shard_of(*this).before_use);
  about_to_use(norm);
  Trunk out;
  {
    const ProfileScope scope("norm");
    out = {norm(x.delta, x.residual).y, std::move(x.aux)};
  }
  about_to_use(head);
  return out;
}

Trunk Gpt::trunk(const Tensor& ids, const Packing& packing) const {
  return run(ids, context_of(ids, packing, nullptr));
}

Tensor Gpt::hidden(const Tensor& ids, const Packing& packing) const {
  Trunk t = run(ids, context_of(ids, packing, nullptr));
  check(!t.aux.defined(),
        "gpt: hidden() would lose what the routers add to the loss; use losses() or trunk()");
  return std::move(t.hidden);
}

Trunk Gpt::mtp_trunk(int depth, const Tensor& later, const Tensor& h, const Packing& packing,
                     KvCache* cache) const {
  check(depth >= 1 && depth <= config.mtp.depths, "gpt: depth must be in [1, {}], got {}",
        config.mtp.depths, depth);
  const MtpDepth& layer = mtp[config.mtp.repeated ? 0 : static_cast<std::size_t>(depth - 1)];
  const ProfileScope scope("mtp");
  if (cache) {
    check_new_tokens(later);
    cache->check_fits(later, embed.weight);
  }
  const TokenContext context = context_of(later, packing, cache);
  // Or a layer that serves all depths would drop the same elements in each.
  std::optional<RandomScope> own;
  if (const RandomState* const random = RandomScope::current();
      random && config.mtp.repeated && depth > 1) {
    RandomState state = *random;
    state.use = static_cast<std::uint64_t>(depth - 1);
    own.emplace(state);
  }
  Tensor e = embed_tokens(later, context, depth);
  if (config.mtp.detached) e = e.detach();
  Trunk y;
  if (has(layer.block.recompute, Recompute::full) && !cache) {
    y = layer.recomputed(e, h, context, shard_of(*this).before_use);
  } else {
    about_to_use(layer);
    y = layer(e, h, context);
  }
  if (cache) cache->advance(later.dim(1));
  about_to_use(head);
  return y;
}

Tensor Gpt::operator()(const Tensor& ids, const Packing& packing) const {
  const Tensor logits = head(hidden(ids, packing));
  return shard_of(*this).tokens.ranks > 1 ? logits.view({ids.dim(0), ids.dim(1), logits.dim(-1)})
                                          : logits;
}

Tensor Gpt::extend(const Tensor& ids, KvCache& cache) const {
  check_new_tokens(ids);
  cache.check_fits(ids, embed.weight);
  const NoGradGuard off;
  const Tensor h = run(ids, context_of(ids, {}, &cache)).hidden;
  cache.advance(ids.dim(1));
  return h;
}

Tensor Gpt::extend(const Tensor& ids, std::span<KvCache* const> rows) const {
  check_new_tokens(ids);
  check(std::ssize(rows) == ids.dim(0), "gpt: each of the {} rows needs a cache, got {}",
        ids.dim(0), rows.size());
  check(shard_of(*this).tokens.ranks == 1, "gpt: rows with caches need a model on one rank");
  for (auto row = rows.begin(); row != rows.end(); ++row) {
    check(*row && std::find(rows.begin(), row, *row) == row,
          "gpt: each row needs a cache of its own, got {} for row {}",
          *row ? "that of another row" : "none", row - rows.begin());
    (*row)->check_fits(ids.narrow(0, row - rows.begin(), 1), embed.weight);
  }
  const NoGradGuard off;
  TokenContext context = context_of(ids, {}, nullptr);
  context.rows = rows;
  const Tensor h = run(ids, context).hidden;
  for (KvCache* const cache : rows) cache->advance(ids.dim(1));
  return h;
}

Tensor Gpt::logits_of_last(const Tensor& h) const {
  const NoGradGuard off;
  return head(h.select(1, h.dim(1) - 1));
}

Tensor Gpt::decode(const Tensor& ids, KvCache& cache) const {
  return logits_of_last(extend(ids, cache));
}

Tensor Gpt::decode(const Tensor& ids, std::span<KvCache* const> rows) const {
  return logits_of_last(extend(ids, rows));
}

std::string Gpt::describe() const {
  std::string form = word_of(kArchWords, config.arch);
  const GptConfig said = config.reduced();
  if (said.positions != Positions::automatic)
    form += message(", positions {}", word_of(kPositionsWords, said.positions));
  if (said.norm != NormKind::automatic)
    form += message(", norm {}", word_of(kNormWords, said.norm));
  if (said.activation) form += message(", {}", row_of(*said.activation).word);
  return message("Gpt({}, {} layers, {} heads, dim {}, seq {}, vocab {})", form, config.layers,
                 config.heads, config.dim, config.seq, config.vocab);
}

}  // namespace weft::nn
