#include "weft/nn/attention.h"

#include <cmath>
#include <limits>

#include "weft/autograd/attention.h"
#include "weft/autograd/discard.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/logic.h"
#include "weft/autograd/rope.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/nn/each_row.h"

namespace weft::nn {
namespace {

std::int64_t width_of_head(std::int64_t dim, std::int64_t heads, std::int64_t given) {
  check(heads > 0 && (given > 0 || (given == 0 && dim % heads == 0)),
        "attention: dim {} must be a multiple of heads {}", dim, heads);
  return given ? given : dim / heads;
}

std::int64_t packed_rows(std::int64_t head_dim, std::int64_t heads, const AttentionOptions& o) {
  check(o.kv_heads >= 0 && heads % (o.kv_heads ? o.kv_heads : heads) == 0,
        "attention: heads {} must be a multiple of kv_heads {}", heads, o.kv_heads);
  return (heads * (o.gate ? 2 : 1) + 2 * (o.kv_heads ? o.kv_heads : heads)) * head_dim;
}

// rope() on as many elements at the start of each head as the table has angles for.
Tensor turned(const Tensor& x, const RotaryTable& table, const Packing& packing,
              std::int64_t first) {
  const auto turn = [&](const Tensor& t) {
    return packing ? rope(t, table.cos, table.sin, packing.positions)
                   : rope(t, table.cos, table.sin, first);
  };
  const std::int64_t width = 2 * table.cos.dim(1);
  if (width >= x.dim(3)) return turn(x);
  const TensorList parts = split(x, {width, x.dim(3) - width}, 3);
  return cat({turn(parts[0]), parts[1]}, 3);
}

// This shard's part of a mask for all heads.
Tensor mask_of_heads(const Tensor& mask, const Shard::Heads& shard, std::int64_t heads) {
  if (!mask.defined() || mask.ndim() < 3 || mask.dim(-3) == 1 || shard.all == heads) return mask;
  check(mask.dim(-3) == shard.all, "attention: mask must have 1 or all {} heads, got {}", shard.all,
        mask.dim(-3));
  return narrow(mask, -3, shard.first, heads);
}

// The mask, null for none, that also hides the keys of padding.
Tensor without_padding(const Tensor& mask, const Tensor& padding) {
  if (!mask.defined()) return logical_not(padding);
  if (mask.dtype() == DType::boolean) return logical_and(mask, logical_not(padding));
  const double hidden = -std::numeric_limits<double>::infinity();
  return where(padding, Tensor::full({}, hidden, mask.dtype(), mask.device()), mask);
}

// What attention reads besides `how`.
TensorList with_mask(TensorList inputs, const Tensor& mask) {
  if (mask.defined()) inputs.push_back(mask);
  return inputs;
}

}  // namespace

Attention::Attention(std::int64_t dim, std::int64_t heads, const AttentionOptions& o)
    : options(o),
      head_dim(width_of_head(dim, heads, o.head_dim)),
      qkv(dim, packed_rows(head_dim, heads, o), {.bias = o.bias, .init = o.init}),
      proj(heads * head_dim, dim, {.bias = o.proj_bias.value_or(o.bias), .init = o.proj_init}),
      drop(o.dropout) {
  const std::int64_t keys = (o.kv_heads ? o.kv_heads : heads) * head_dim;
  if (!o.one_projection)
    qkv.parts = {{"q", qkv.weight.dim(0) - 2 * keys}, {"k", keys}, {"v", keys}};
  check(o.window >= 0, "attention: window must be at least 0, got {}", o.window);
  check(o.causal || o.window == 0, "attention: window must be 0 without causal, got {}", o.window);
  check(o.clip >= 0, "attention: clip must be at least 0, got {}", o.clip);
  if (o.qk_norm) {
    const Norm::Kind kind = o.zero_centered_norm ? Norm::Kind::rms_centered : Norm::Kind::rms;
    const std::int64_t kv = o.kv_heads ? o.kv_heads : heads;
    q_norm.emplace(kind, head_dim * (o.qk_norm_joint ? heads : 1), o.norm_eps);
    k_norm.emplace(kind, head_dim * (o.qk_norm_joint ? kv : 1), o.norm_eps);
  }
}

// The norm over each head, or over all of them, of (B, T, heads, D).
Tensor Attention::normed(const std::optional<Norm>& norm, const Tensor& x) const {
  if (!norm) return x;
  if (!options.qk_norm_joint) return (*norm)(x);
  return (*norm)(x.reshape({x.dim(0), x.dim(1), x.dim(2) * x.dim(3)})).view(x.shape());
}

Tensor Attention::clipped(const Tensor& x) const {
  return options.clip > 0 ? clamp(x, -options.clip, options.clip) : x;
}

Tensor Attention::mix(const Tensor& x, const TokenContext& context) const {
  if (context.packing && !context.part) context.packing.check_row(x);
  check(options.causal || !context.has_cache(), "attention: a cache needs causal attention");
  if (context.rows.empty()) return mixed(qkv(x), context, proj);
  // The products are of all rows at once.
  return proj(each_row(qkv(x), context, [this](const Tensor& row, const TokenContext& own) {
    return mixed(row, own, [](const Tensor& heads) { return heads; });
  }));
}

template <class F>
Tensor Attention::mixed(Tensor projected, const TokenContext& context, const F& project) const {
  const Packing& packing = context.packing;
  const RotaryTable* const rotary = context.rotary;
  KvCache* const cache = context.cache;
  const std::optional<TokenPart>& part = context.part;
  const std::int64_t batch = part ? part->sequences : projected.dim(0);
  const std::int64_t tokens = part ? part->tokens : projected.dim(1);
  const std::int64_t heads = this->heads(), kv_heads = this->kv_heads();

  weft::AttentionOptions how;
  how.causal = options.causal;
  how.window = options.window;
  const Shard::Heads shard = shard_of(*this).heads.value_or(Shard::Heads{0, heads});
  how.mask = mask_of_heads(context.mask, shard, heads);
  if (!options.causal && packing.padding.defined() && !packing)
    how.mask = without_padding(how.mask, packing.padding.view({batch, 1, 1, tokens}));
  how.cu_seqlens = packing.cu_seqlens;
  how.cu_checked = packing.checked();
  drop.drop_weights(
      how, shard,
      {.queries = tokens, .keys = tokens + (cache ? cache->length() : 0), .rows = packing.rows});
  const Shape out{batch, tokens, heads * head_dim};
  Tensor gate;
  const auto finish = [&](const Tensor& y) {
    return project((gate.defined() ? mul(y, sigmoid(gate)) : y).view(out));
  };
  Tensor packed = projected.view({batch, tokens, qkv.weight.dim(0) / head_dim, head_dim});
  projected = {};
  const bool whole_heads = !rotary || 2 * rotary->cos.dim(1) == head_dim;
  if (!q_norm && !cache && !options.gate && whole_heads) {
    // One packed array, forward and backward.
    if (options.clip > 0) packed = clipped(packed);
    if (rotary)
      packed = rope_packed(std::move(packed), heads + kv_heads, rotary->cos, rotary->sin,
                           packing.positions);
    return use_discarded(
        options.recompute, with_mask({packed}, how.mask),
        [heads, kv_heads, how](const TensorList& in) {
          return attention_packed(in[0], heads, kv_heads, how);
        },
        finish);
  }
  // One split, not three slices: its backward writes the three gradients into one tensor.
  TensorList parts = split(packed, {heads * (options.gate ? 2 : 1), kv_heads, kv_heads}, 2);
  packed = {};
  Tensor q = std::move(parts[0]), k = std::move(parts[1]), v = std::move(parts[2]);
  if (options.gate) {
    TensorList both =
        split(q.reshape({batch, tokens, heads, 2 * head_dim}), {head_dim, head_dim}, 3);
    q = std::move(both[0]);
    gate = std::move(both[1]);
  }
  q = clipped(normed(q_norm, q));
  k = clipped(normed(k_norm, k));
  v = clipped(v);
  if (rotary) {
    const std::int64_t first = cache ? cache->length() : 0;
    q = turned(q, *rotary, packing, first);
    k = turned(k, *rotary, packing, first);
  }
  if (cache) {
    KvCache::Pair seen = cache->append(context.layer, k, v);
    k = std::move(seen.k);
    v = std::move(seen.v);
  }
  return use_discarded(
      options.recompute, with_mask({q, k, v}, how.mask),
      [how](const TensorList& in) { return attention(in[0], in[1], in[2], how); }, finish);
}

void Attention::visit(Visitor& v) {
  v("qkv", qkv);
  v("q_norm", q_norm);
  v("k_norm", k_norm);
  v("drop", drop);
  v("proj", proj);
}

std::string Attention::describe() const {
  return message("Attention({} heads, {} key heads, {} wide{})", heads(), kv_heads(), head_dim,
                 options.causal ? "" : ", not causal");
}

KvCache::Entry Attention::cache_entry(std::int64_t batch, std::int64_t capacity, DType dtype,
                                      Device device) const {
  const Shape shape{batch, capacity, kv_heads(), head_dim};
  return {.tokens = {Tensor::zeros(shape, dtype, device), Tensor::zeros(shape, dtype, device)}};
}

double mean_keys(std::int64_t tokens, std::int64_t window) {
  const auto n = static_cast<double>(tokens), w = window ? std::fmin(window, n) : n;
  return (w * (w + 1) / 2 + (n - w) * w) / n;
}

double Attention::multiply_adds(std::int64_t tokens) const {
  const auto width = static_cast<double>(proj.weight.dim(1));  // a score and a value for each key
  const double keys =
      options.causal ? mean_keys(tokens, options.window) : static_cast<double>(tokens);
  return qkv.multiply_adds() + proj.multiply_adds() + 2 * width * keys;
}

}  // namespace weft::nn
