#include "weft/nn/gpt_layers.h"

#include <algorithm>
#include <cmath>

#include "weft/core/error.h"
#include "weft/nn/attention.h"
#include "weft/nn/gated_delta_net.h"
#include "weft/nn/mla.h"
#include "weft/nn/mlp.h"
#include "weft/nn/moe.h"

namespace weft::nn {
namespace {

using detail::real;

std::unique_ptr<Mixer> make_attention(const GptConfig& c, const Init& proj) {
  if (c.attention == AttentionKind::mla) {
    MlaOptions o = c.mla_options();
    o.proj_init = proj;
    return std::make_unique<Mla>(c.dim, c.heads, o);
  }
  return std::make_unique<Attention>(c.dim, c.heads,
                                     AttentionOptions{.kv_heads = c.kv_heads,
                                                      .bias = c.arch == Arch::gpt2,
                                                      .qk_norm = c.qk_norm,
                                                      .norm_eps = c.norm_eps,
                                                      .window = c.window,
                                                      .dropout = c.dropout,
                                                      .proj_init = proj});
}

MixerCost attention_cost(const GptConfig& c) {
  const double dim = real(c.dim);
  if (c.attention == AttentionKind::mla) {
    const MlaOptions m = c.mla_options();
    const double queries = real(c.heads * (m.nope + m.rope));
    const double weights = (m.q_lora ? (dim + queries) * real(m.q_lora) : dim * queries) +
                           dim * real(m.kv_lora + m.rope) +
                           real(m.kv_lora) * real(c.heads * (m.nope + m.v_head)) +
                           real(c.heads * m.v_head) * dim;
    return {weights + real(m.q_lora + m.kv_lora), weights,
            real(c.heads * (m.nope + m.rope + m.v_head))};
  }
  const double q = real(c.heads * c.head_dim()), kv = real(c.kv_head_count() * c.head_dim());
  const double weights = 2 * dim * real(c.head_dim()) * real(c.heads + c.kv_head_count());
  double others = c.arch == Arch::gpt2 ? q + 2 * kv + dim : 0;  // biases of qkv and proj
  if (c.qk_norm) others += 2 * real(c.head_dim());
  return {weights + others, weights, 2 * q};
}

std::unique_ptr<Mixer> make_delta(const GptConfig& c, const Init& proj) {
  GatedDeltaNetOptions o = c.delta_options();
  o.proj_init = proj;
  return std::make_unique<GatedDeltaNet>(c.dim, o);
}

MixerCost delta_cost(const GptConfig& c) {
  const GatedDeltaNetOptions d = c.delta_options();
  const double weights = real(c.dim) * real(GatedDeltaNet::inputs(d)) +
                         real(d.conv) * real(GatedDeltaNet::channels(d)) +
                         real(d.value_heads * d.value_dim) * real(c.dim);
  // Besides the weights: decay and bias of each head, and one norm shared by the heads. The delta
  // rule reads its state twice, decays it and writes it once.
  return {weights + real(2 * d.value_heads + d.value_dim),
          weights + 4 * real(d.value_heads * d.key_dim) * real(d.value_dim)};
}

constexpr MixerKind kMixers[] = {{'a', "attention", make_attention, attention_cost},
                                 {'d', "gated delta net", make_delta, delta_cost}};

std::unique_ptr<FeedForward> make_feed_forward(const GptConfig& c, std::int64_t block,
                                               const Init& proj) {
  const bool gpt2 = c.arch == Arch::gpt2;
  const MlpOptions mlp{.activation = !gpt2                  ? Activation::swiglu
                                     : c.gelu == Gelu::tanh ? Activation::gelu_tanh
                                                            : Activation::gelu_erf,
                       .bias = gpt2,
                       .recompute = c.recompute == Recompute::selective,
                       .proj_init = proj};
  if (!c.has_experts(block)) return std::make_unique<Mlp>(c.dim, c.ffn_dim(), mlp);
  MoeOptions o = c.moe;
  o.ffn = c.expert_ffn_dim();
  o.activation = mlp.activation;
  o.bias = gpt2;
  o.recompute = mlp.recompute;
  o.proj_init = proj;
  return std::make_unique<MoE>(c.dim, o);
}

}  // namespace

std::span<const MixerKind> mixer_kinds() { return kMixers; }

std::string mixer_letters() {
  std::string text;
  for (const MixerKind& kind : kMixers) {
    if (&kind != kMixers) text += &kind == std::end(kMixers) - 1 ? " and " : ", ";
    text += std::string(1, kind.letter) + " (" + kind.name + ")";
  }
  return text;
}

const char* detail::pattern_help() {
  static const std::string text = [] {
    std::string letters;
    for (const MixerKind& kind : kMixers)
      letters += std::string(1, kind.letter) + " " + kind.name + ", ";
    return "one letter a layer, repeated: " + letters + "as in ddda; empty: attention";
  }();
  return text.c_str();
}

const MixerKind& mixer_kind(const GptConfig& c, std::int64_t block) {
  const char letter = c.mixer(block);
  const auto* const found = std::find_if(std::begin(kMixers), std::end(kMixers),
                                         [&](const MixerKind& k) { return k.letter == letter; });
  check(found != std::end(kMixers), "gpt: pattern must consist of {}, got \"{}\"", mixer_letters(),
        c.pattern);
  return *found;
}

Norm make_norm(const GptConfig& c) {
  return Norm(c.arch == Arch::gpt2 ? Norm::Kind::layer : Norm::Kind::rms, c.dim, c.norm_eps);
}

Block make_block(const GptConfig& c, std::int64_t block) {
  // The projections into the residual stream start smaller, so that the sum over 2 * layers
  // branches keeps its scale. Source: Radford et al. 2019, section 2.3.
  const Init proj = Init::normal(0.02 / std::sqrt(2.0 * real(c.layers)));
  std::unique_ptr<Mixer> mixer = mixer_kind(c, block).make(c, proj);
  return Block(make_norm(c), std::move(mixer), make_feed_forward(c, block, proj), c.dropout);
}

}  // namespace weft::nn
