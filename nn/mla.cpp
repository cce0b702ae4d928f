#include "weft/nn/mla.h"

#include <cmath>

#include "weft/autograd/attention.h"
#include "weft/autograd/discard.h"
#include "weft/autograd/rope.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/nn/attention.h"

namespace weft::nn {
namespace {

const MlaOptions& checked(const MlaOptions& o, std::int64_t heads) {
  check(heads >= 1, "mla: heads must be at least 1, got {}", heads);
  check(o.kv_lora >= 1 && o.nope >= 1 && o.v_head >= 1,
        "mla: kv_lora, nope and v_head must be at least 1, got {}, {} and {}", o.kv_lora, o.nope,
        o.v_head);
  check(o.rope >= 2 && o.rope % 2 == 0, "mla: rope must be even and at least 2, got {}", o.rope);
  check(o.q_lora >= 0, "mla: q_lora must be at least 0, got {}", o.q_lora);
  check(o.window >= 0, "mla: window must be at least 0, got {}", o.window);
  return o;
}

}  // namespace

Mla::Mla(std::int64_t dim, std::int64_t heads, const MlaOptions& o)
    : options(checked(o, heads)),
      q_up(o.q_lora ? o.q_lora : dim, heads * (o.nope + o.rope), {.bias = false, .init = o.init}),
      kv_down(dim, o.kv_lora + o.rope, {.bias = false, .init = o.init}),
      kv_norm(o.kv_lora, o.norm_eps),
      kv_up(o.kv_lora, heads * (o.nope + o.v_head), {.bias = false, .init = o.init}),
      proj(heads * o.v_head, dim, {.bias = false, .init = o.proj_init}),
      drop(o.dropout) {
  if (!o.q_lora) return;
  q_down.emplace(dim, o.q_lora, LinearOptions{.bias = false, .init = o.init});
  q_norm.emplace(o.q_lora, o.norm_eps);
}

const fp8::LayerState* Mla::fp8_reader() const {
  if (shard_of(*this).enter) return nullptr;
  return (q_down ? *q_down : q_up).fp8_reader();
}

Tensor Mla::mix(const Tensor& given, const TokenContext& context) const {
  check(context.rotary != nullptr, "block: multi-head latent attention needs a rotary table");
  const RotaryTable& rotary = *context.rotary;
  const Packing& packing = context.packing;
  KvCache* const cache = context.cache;
  const std::optional<TokenPart>& part = context.part;
  const Shard& own = shard_of(*this);
  std::optional<DiscardScope> scope;
  if (own.enters_again) scope.emplace();
  Tensor entered = own.enter ? own.enter(given) : given, x = entered;
  if (part) x = x.view({part->sequences, part->tokens, x.dim(-1)});
  if (packing) packing.check_row(x);
  const MlaOptions& o = options;
  const std::int64_t batch = x.dim(0), tokens = x.dim(1), H = heads();
  const auto turn = [&](const Tensor& t) {
    return packing ? rope(t, rotary.cos, rotary.sin, packing.positions)
                   : rope(t, rotary.cos, rotary.sin, cache ? cache->length() : std::int64_t{0});
  };

  Tensor q = q_up(q_down ? (*q_norm)((*q_down)(x)) : x);
  const TensorList of_q = split(q.view({batch, tokens, H, o.nope + o.rope}), {o.nope, o.rope}, 3);
  q = cat({of_q[0], turn(of_q[1])}, 3);

  const TensorList down = split(kv_down(x), {o.kv_lora, o.rope}, 2);
  x = {};
  if (scope)
    scope->discard(std::move(entered), {given},
                   [&own](const TensorList& in) { return own.enter(in[0]); });
  Tensor latent = kv_norm(down[0]).view({batch, tokens, 1, o.kv_lora});
  Tensor shared = turn(down[1].view({batch, tokens, 1, o.rope}));
  if (cache) {
    KvCache::Pair seen = cache->append(context.layer, latent, shared);
    latent = std::move(seen.k);
    shared = std::move(seen.v);
  }
  const std::int64_t keys = latent.dim(1);
  const Tensor up = kv_up(latent.squeeze(2)).view({batch, keys, H, o.nope + o.v_head});
  const TensorList of_kv = split(up, {o.nope, o.v_head}, 3);
  const Tensor k = cat({of_kv[0], shared.expand({batch, keys, H, o.rope})}, 3);

  weft::AttentionOptions how;
  how.causal = true;
  how.window = o.window;
  if (o.scale_factor != 1)
    how.scale = o.scale_factor / std::sqrt(static_cast<double>(o.nope + o.rope));
  how.cu_seqlens = packing.cu_seqlens;
  how.cu_checked = packing.checked();
  drop.drop_weights(how, shard_of(*this).heads.value_or(Shard::Heads{0, H}),
                    {.queries = tokens, .keys = keys, .rows = packing.rows});
  return use_discarded(
      o.recompute, {q, k, of_kv[1]},
      [how](const TensorList& in) { return attention(in[0], in[1], in[2], how); },
      [&](const Tensor& y) {
        return proj(y.view({batch, tokens, H * o.v_head}));
      });
}

void Mla::visit(Visitor& v) {
  v("q_down", q_down);
  v("q_norm", q_norm);
  v("q_up", q_up);
  v("kv_down", kv_down);
  v("kv_norm", kv_norm);
  v("kv_up", kv_up);
  v("drop", drop);
  v("proj", proj);
}

std::string Mla::describe() const {
  return message("Mla({} heads of {} + {} and {}, latent of {})", heads(), options.nope,
                 options.rope, options.v_head, options.kv_lora);
}

KvCache::Entry Mla::cache_entry(std::int64_t batch, std::int64_t capacity, DType dtype,
                                Device device) const {
  return {.tokens = {Tensor::zeros({batch, capacity, 1, options.kv_lora}, dtype, device),
                     Tensor::zeros({batch, capacity, 1, options.rope}, dtype, device)}};
}

double Mla::multiply_adds(std::int64_t tokens) const {
  const auto width = static_cast<double>(heads() * (options.nope + options.rope + options.v_head));
  return (q_down ? q_down->multiply_adds() : 0) + q_up.multiply_adds() + kv_down.multiply_adds() +
         kv_up.multiply_adds() + proj.multiply_adds() + width * mean_keys(tokens, options.window);
}

}  // namespace weft::nn
