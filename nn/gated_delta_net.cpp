#include "weft/nn/gated_delta_net.h"

#include <cmath>

#include "weft/autograd/causal_conv1d.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/gated_delta.h"
#include "weft/autograd/rms_norm.h"
#include "weft/autograd/swiglu.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::nn {
namespace {

const GatedDeltaNetOptions& checked(const GatedDeltaNetOptions& o) {
  o.validate();
  return o;
}

Init conv_init(const GatedDeltaNetOptions& o) {
  return Init::uniform(1 / std::sqrt(static_cast<double>(o.conv)));
}
Init decay_init() { return Init::log_uniform(1, 16); }

}  // namespace

void GatedDeltaNetOptions::validate() const {
  check(key_heads > 0 && value_heads > 0 && value_heads % key_heads == 0,
        "gated_delta_net: value_heads {} must be a multiple of key_heads {}", value_heads,
        key_heads);
  check(key_dim > 0 && value_dim > 0,
        "gated_delta_net: key_dim and value_dim must be at least 1, got {} and {}", key_dim,
        value_dim);
  check(conv >= 2 && conv <= 8, "gated_delta_net: conv must be in [2, 8], got {}", conv);
}

GatedDeltaNet::GatedDeltaNet(std::int64_t dim, const GatedDeltaNetOptions& o)
    : options(checked(o)),
      in_proj(dim, inputs(o), {.bias = false, .init = o.init, .in_fp8 = false}),  // has gates
      conv(make_parameter({channels(o), o.conv}, conv_init(o))),
      a_log(make_parameter({o.value_heads}, decay_init(), DType::f32)),
      dt_bias(make_parameter({o.value_heads}, Init::constant(1), DType::f32)),
      norm(o.value_dim, o.norm_eps),
      out_proj(o.value_heads * o.value_dim, dim, {.bias = false, .init = o.proj_init}) {
  in_proj.parts = {{"qkvz", inputs(o) - 2 * o.value_heads}, {"ba", 2 * o.value_heads}};
}

Tensor GatedDeltaNet::mix(const Tensor& x, const TokenContext& context) const {
  const Packing& packing = context.packing;
  KvCache* const cache = context.cache;
  if (packing && !context.part) packing.check_row(x);
  const GatedDeltaNetOptions& o = options;
  const std::optional<TokenPart>& part = context.part;
  const std::int64_t batch = part ? part->sequences : x.dim(0);
  const std::int64_t tokens = part ? part->tokens : x.dim(1);
  const std::int64_t key_heads = own_key_heads(), value_heads = own_value_heads();
  const std::int64_t keys = key_heads * o.key_dim, values = value_heads * o.value_dim;
  const DType real = x.dtype() == DType::f64 ? DType::f64 : DType::f32;

  const Tensor projected = in_proj(x);  // of all tokens
  const TensorList parts = split(projected.view({batch, tokens, projected.dim(-1)}),
                                 {conv.dim(0), values, value_heads, value_heads}, 2);
  KvCache::Recurrent past;
  if (cache) past = cache->recurrent(context.layer);
  const Tensor mixed = causal_conv1d(parts[0], conv,
                                     {.silu = true,
                                      .cu_seqlens = packing.cu_seqlens,
                                      .cu_checked = packing.checked(),
                                      .state = past.conv});
  const TensorList heads = split(mixed, {keys, keys, values}, 2);
  // rms_norm scales q and k to length sqrt(K), not 1. For k, beta compensates: the state is smaller
  // by sqrt(K), and the longer q restores the output.
  const double length = static_cast<double>(o.key_dim);
  const auto unit = [&](const Tensor& t) {
    return rms_norm(t.view({batch, tokens, key_heads, o.key_dim}), {}, 1e-6 / length);
  };
  const Tensor beta = mul(sigmoid(cast(parts[2], real)), 1 / length);
  const Tensor rate = softplus(add(cast(parts[3], real), cast(dt_bias, real)));
  const Tensor g = mul(neg(exp(cast(a_log, real))), rate);
  const Tensor v = heads[2].view({batch, tokens, value_heads, o.value_dim});
  GatedDelta rule = gated_delta(
      unit(heads[0]), unit(heads[1]), v, g, beta,
      {.cu_seqlens = packing.cu_seqlens, .cu_checked = packing.checked(), .state = past.state});
  if (cache) {
    const Tensor seen = cat({past.conv, parts[0]}, 1);
    cache->set_recurrent(context.layer,
                         {contiguous(seen.narrow(1, tokens, o.conv - 1)), rule.state});
  }
  const Tensor z = parts[1].view({batch, tokens, value_heads, o.value_dim});
  return out_proj(swiglu(z, norm(rule.y)).view({batch, tokens, values}));
}

void GatedDeltaNet::visit(Visitor& v) {
  v("in_proj", in_proj);
  v("conv", conv, conv_init(options));
  v("a_log", pinned(a_log), decay_init());
  v("dt_bias", pinned(dt_bias), Init::constant(1));
  v("norm", norm);
  v("out_proj", out_proj);
}

std::string GatedDeltaNet::describe() const {
  return message("GatedDeltaNet({} value heads of {}, {} key heads of {}, {} taps)",
                 own_value_heads(), options.value_dim, own_key_heads(), options.key_dim,
                 options.conv);
}

KvCache::Entry GatedDeltaNet::cache_entry(std::int64_t batch, std::int64_t, DType dtype,
                                          Device device) const {
  const GatedDeltaNetOptions& o = options;
  const DType real = dtype == DType::f64 ? DType::f64 : DType::f32;
  return {
      .state = {Tensor::zeros({batch, o.conv - 1, conv.dim(0)}, dtype, device),
                Tensor::zeros({batch, own_value_heads(), o.key_dim, o.value_dim}, real, device)}};
}

double GatedDeltaNet::multiply_adds(std::int64_t) const {
  const GatedDeltaNetOptions& o = options;
  // For each token the rule decays its state, reads it twice and writes it once.
  const double rule =
      4.0 * static_cast<double>(own_value_heads() * o.key_dim) * static_cast<double>(o.value_dim);
  return in_proj.multiply_adds() + static_cast<double>(conv.numel()) + rule +
         out_proj.multiply_adds();
}

}  // namespace weft::nn
