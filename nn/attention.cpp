#include "weft/nn/attention.h"

#include <cmath>

#include "weft/autograd/attention.h"
#include "weft/autograd/discard.h"
#include "weft/autograd/rope.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/random.h"

namespace weft::nn {
namespace {

std::int64_t width_of_head(std::int64_t dim, std::int64_t heads, std::int64_t given) {
  check(heads > 0 && (given > 0 || (given == 0 && dim % heads == 0)),
        "attention: dim {} must be a multiple of heads {}", dim, heads);
  return given ? given : dim / heads;
}

std::int64_t packed_rows(std::int64_t head_dim, std::int64_t heads, std::int64_t kv_heads) {
  check(kv_heads >= 0 && heads % (kv_heads ? kv_heads : heads) == 0,
        "attention: heads {} must be a multiple of kv_heads {}", heads, kv_heads);
  return (heads + 2 * (kv_heads ? kv_heads : heads)) * head_dim;
}

}  // namespace

Attention::Attention(std::int64_t dim, std::int64_t heads, const AttentionOptions& o)
    : options(o),
      head_dim(width_of_head(dim, heads, o.head_dim)),
      qkv(dim, packed_rows(head_dim, heads, o.kv_heads), {.bias = o.bias, .init = o.init}),
      proj(heads * head_dim, dim, {.bias = o.proj_bias.value_or(o.bias), .init = o.proj_init}),
      drop(o.dropout) {
  check(o.window >= 0, "attention: window must be at least 0, got {}", o.window);
  if (o.qk_norm) {
    q_norm.emplace(head_dim, o.norm_eps);
    k_norm.emplace(head_dim, o.norm_eps);
  }
}

Tensor Attention::operator()(const Tensor& x, const TokenContext& context) const {
  check(x.ndim() == 3, "attention: x must have shape (batch, tokens, dim), got {}", x.shape());
  const Packing& packing = context.packing;
  const RotaryTable* const rotary = context.rotary;
  KvCache* const cache = context.cache;
  const std::optional<TokenPart>& part = context.part;
  if (packing) {
    if (!part) packing.check_row(x);
    check(!cache, "attention: a packed row cannot go with a cache");
  }
  const std::int64_t batch = part ? part->sequences : x.dim(0);
  const std::int64_t tokens = part ? part->tokens : x.dim(1);
  const std::int64_t all = qkv.weight.dim(0) / head_dim;  // query, key and value heads
  const std::int64_t heads = proj.weight.dim(1) / head_dim, kv_heads = (all - heads) / 2;

  weft::AttentionOptions how;
  how.causal = true;
  how.window = options.window;
  how.cu_seqlens = packing.cu_seqlens;
  how.cu_checked = packing.checked();
  if (drop.p > 0 && is_training()) {
    how.dropout = drop.p;
    const auto per_token =
        static_cast<std::uint64_t>(tokens + (cache ? cache->length() : std::int64_t{0}));
    const std::optional<Shard::Heads>& held = shard_of(*this).heads;
    how.key_heads = held ? held->all : heads;
    how.key = RandomScope::key_for(
        drop.stream(), static_cast<std::uint64_t>(how.key_heads * tokens) * per_token, per_token);
    if (held) how.key.first += static_cast<std::uint64_t>(held->first * tokens) * per_token;
  }
  const Shape out{batch, tokens, heads * head_dim};
  const auto project = [&](const Tensor& y) { return proj(y.view(out)); };
  Tensor packed = qkv(x).view({batch, tokens, all, head_dim});
  if (!q_norm && !cache) {  // one packed array, forward and backward
    if (rotary)
      packed = rope_packed(std::move(packed), heads + kv_heads, rotary->cos, rotary->sin,
                           packing.positions);
    return use_discarded(
        options.recompute, {packed},
        [heads, kv_heads, how](const TensorList& in) {
          return attention_packed(in[0], heads, kv_heads, how);
        },
        project);
  }
  // One split, not three slices: its backward writes the three gradients into one tensor.
  TensorList parts = split(packed, {heads, kv_heads, kv_heads}, 2);
  packed = {};
  Tensor q = std::move(parts[0]), k = std::move(parts[1]), v = std::move(parts[2]);
  if (q_norm) q = (*q_norm)(q);
  if (k_norm) k = (*k_norm)(k);
  if (rotary && packing) {
    q = rope(q, rotary->cos, rotary->sin, packing.positions);
    k = rope(k, rotary->cos, rotary->sin, packing.positions);
  } else if (rotary) {
    const std::int64_t first = cache ? cache->length() : 0;
    q = rope(q, rotary->cos, rotary->sin, first);
    k = rope(k, rotary->cos, rotary->sin, first);
  }
  if (cache) {
    KvCache::Pair seen = cache->append(context.layer, k, v);
    k = std::move(seen.k);
    v = std::move(seen.v);
  }
  return use_discarded(
      options.recompute, {q, k, v},
      [how](const TensorList& in) { return attention(in[0], in[1], in[2], how); }, project);
}

void Attention::visit(Visitor& v) {
  v("qkv", qkv);
  v("q_norm", q_norm);
  v("k_norm", k_norm);
  v("drop", drop);
  v("proj", proj);
}

std::string Attention::describe() const {
  const std::int64_t heads = proj.weight.dim(1) / head_dim;
  return message("Attention({} heads, {} key heads, {} wide)", heads,
                 (qkv.weight.dim(0) / head_dim - heads) / 2, head_dim);
}

KvCache::Entry Attention::cache_entry(std::int64_t batch, std::int64_t capacity, DType dtype,
                                      Device device) const {
  const std::int64_t heads = proj.weight.dim(1) / head_dim;
  const std::int64_t kv_heads = (qkv.weight.dim(0) / head_dim - heads) / 2;
  const Shape shape{batch, capacity, kv_heads, head_dim};
  return {.tokens = {Tensor::zeros(shape, dtype, device), Tensor::zeros(shape, dtype, device)}};
}

double mean_keys(std::int64_t tokens, std::int64_t window) {
  const auto n = static_cast<double>(tokens), w = window ? std::fmin(window, n) : n;
  return (w * (w + 1) / 2 + (n - w) * w) / n;
}

double Attention::multiply_adds(std::int64_t tokens) const {
  const auto width = static_cast<double>(proj.weight.dim(1));  // a score and a value for each key
  return qkv.multiply_adds() + proj.multiply_adds() + 2 * width * mean_keys(tokens, options.window);
}

}  // namespace weft::nn
