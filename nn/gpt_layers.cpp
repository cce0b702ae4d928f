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

Child<Mixer> make_attention(const GptConfig& c, const Init& proj) {
  const bool recompute = has(c.recompute, Recompute::attention);
  if (c.attention == AttentionKind::mla) {
    MlaOptions o = c.mla_options();
    o.recompute = recompute;
    o.proj_init = proj;
    return Mla(c.dim, c.heads, o);
  }
  return Attention(c.dim, c.heads,
                   AttentionOptions{.kv_heads = c.kv_heads,
                                    .head_dim = c.head_dim(),
                                    .bias = c.biases() >= AttentionBias::qkv,
                                    .proj_bias = c.biases() == AttentionBias::all,
                                    .qk_norm = c.qk_norm,
                                    .qk_norm_joint = c.qk_norm_joint,
                                    .zero_centered_norm = c.zero_centered_norm,
                                    .norm_eps = c.norm_eps,
                                    .clip = c.clip_qkv,
                                    .gate = c.attn_gate,
                                    .window = c.window,
                                    .dropout = c.dropout,
                                    .one_projection = c.one_projection(),
                                    .recompute = recompute,
                                    .proj_init = proj});
}

Child<Mixer> make_delta(const GptConfig& c, const Init& proj) {
  GatedDeltaNetOptions o = c.delta_options();
  o.proj_init = proj;
  return GatedDeltaNet(c.dim, o);
}

constexpr MixerKind kMixers[] = {{'a', "attention", make_attention},
                                 {'w', "attention in a window", make_attention},
                                 {'d', "gated delta net", make_delta}};

Child<FeedForward> make_feed_forward(const GptConfig& c, std::int64_t block, const Init& proj) {
  const MlpOptions mlp{.activation = c.mlp_activation(),
                       .bias = c.mlp_biases(),
                       .recompute = has(c.recompute, Recompute::mlp),
                       .proj_init = proj};
  if (!c.has_experts(block)) return Mlp(c.dim, c.ffn_dim(), mlp);
  MoeOptions o = c.moe;
  o.ffn = c.expert_ffn_dim();
  o.activation = mlp.activation;
  o.bias = mlp.bias;
  o.recompute = has(c.recompute, Recompute::experts);
  o.proj_init = proj;
  return MoE(c.dim, o);
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
  const Norm::Kind kind = c.norm_kind() == NormKind::layer ? Norm::Kind::layer
                          : c.zero_centered_norm           ? Norm::Kind::rms_centered
                                                           : Norm::Kind::rms;
  return Norm(kind, c.dim, c.norm_eps);
}

Block make_block(const GptConfig& config, std::int64_t block) {
  GptConfig c = config;
  c.recompute = config.recompute_of(block);
  c.window = config.window_of(block);
  // The projections into the residual stream start smaller, so that the sum over 2 * layers
  // branches keeps its scale. Source: Radford et al. 2019, section 2.3.
  const Init proj = Init::normal(0.02 / std::sqrt(2.0 * static_cast<double>(c.layers)));
  Child<Mixer> mixer = mixer_kind(c, block).make(c, proj);
  Block out(make_norm(c), std::move(mixer), make_feed_forward(c, block, proj), c.dropout);
  out.recompute = c.recompute;
  return out;
}

}  // namespace weft::nn
