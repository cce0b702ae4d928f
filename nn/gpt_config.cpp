#include "weft/nn/gpt_config.h"

#include <algorithm>
#include <map>
#include <utility>

#include "weft/core/error.h"
#include "weft/nn/gpt_layers.h"

namespace weft::nn {
namespace {

// A double is exact up to here, so parameter_count() is exact.
constexpr double kMostParameters = 0x1p53;

// The sum of f(block) over all blocks and those of `depths` MTP layers, which are like the last
// one. Blocks of a kind are alike, so one of each is built, on the meta device.
template <class F>
double over_blocks(const GptConfig& c, std::int64_t depths, const F& f) {
  struct Kind {
    std::int64_t block;  // the first of its kind
    std::int64_t count = 0;
  };
  std::map<std::pair<char, bool>, Kind> kinds;
  const auto kind = [&](std::int64_t i) -> Kind& {
    return kinds.try_emplace({c.mixer(i), c.has_experts(i)}, Kind{i}).first->second;
  };
  for (std::int64_t i = 0; i < c.layers; ++i) ++kind(i).count;
  kind(c.layers - 1).count += depths;
  const DeviceScope on_meta(kMeta);
  double sum = 0;
  for (const auto& [key, k] : kinds)
    sum += static_cast<double>(k.count) * f(make_block(c, k.block));
  return sum;
}

// A double, as no sum of 64 bits holds every model that a file may ask for.
double values_of(const Module& m) {
  double n = 0;
  for (const Tensor& p : m.parameters()) n += static_cast<double>(p.numel());
  return n;
}

double count_parameters(const GptConfig& c) {
  const std::int64_t depths =
      c.mtp.repeated ? std::min<std::int64_t>(c.mtp.depths, 1) : c.mtp.depths;
  const auto dim = static_cast<double>(c.dim), norm = values_of(make_norm(c));
  const double tables = static_cast<double>(c.vocab) * (c.tied() ? 1 : 2) +
                        (c.position_kind() == Positions::learned ? static_cast<double>(c.seq) : 0);
  return over_blocks(c, depths, [](const Block& block) { return values_of(block); }) +
         tables * dim + norm + static_cast<double>(depths) * (2 * dim * dim + 3 * norm);
}

void validate_experts(const GptConfig& c) {
  if (c.moe.experts == 0)
    return check(c.moe_layers.empty(), "gpt: moe_layers needs experts, got experts 0");
  check(c.dense_layers == 0 || c.moe_layers.empty(),
        "gpt: dense_layers must be 0 beside moe_layers, got {}", c.dense_layers);
  bool some = !c.moe_layers.empty();
  for (std::int64_t i = 0; i < c.layers && !some; ++i) some = c.has_experts(i);
  check(some, "gpt: experts need a layer, but dense_layers {} and moe_every {} leave none of {}",
        c.dense_layers, c.moe_every, c.layers);
  MoeOptions moe = c.moe;
  moe.ffn = c.expert_ffn_dim();
  moe.validate();
  check(c.moe_layers.empty() || static_cast<std::int64_t>(c.moe_layers.size()) == c.layers,
        "gpt: moe_layers must have one number for each of the {} layers, got {}", c.layers,
        c.moe_layers.size());
  for (const std::uint8_t has : c.moe_layers)
    check(has <= 1, "gpt: moe_layers must hold 0 or 1, got {}", static_cast<int>(has));
}

}  // namespace

void GptConfig::validate() const {
  check_fields("gpt", *this);
  check(head_size > 0 || dim % heads == 0, "gpt: dim {} must be a multiple of heads {}", dim,
        heads);
  check(heads % kv_head_count() == 0, "gpt: heads {} must be a multiple of kv_heads {}", heads,
        kv_heads);
  const bool rotary = position_kind() == Positions::rope;
  const char* const places = word_of(kPositionsWords, position_kind());
  check(!rotary || head_size % 2 == 0, "gpt: head_dim must be even for rotary positions, got {}",
        head_size);
  check(!rotary || head_dim() % 2 == 0,
        "gpt: dim / heads must be even for rotary positions, got {} / {} = {}", dim, heads,
        head_dim());
  check(rotary || rope_scaling.kind == RopeScaling::Kind::none,
        "gpt: rope_scaling needs rotary positions, got {}", places);
  check(rope_scaling.kind != RopeScaling::Kind::yarn || rope_theta > 1,
        "gpt: rope_scaling yarn needs rope_theta above 1, got {}", rope_theta);
  check(qk_norm || !qk_norm_joint, "gpt: qk_norm_joint needs qk_norm");
  check(norm_kind() == NormKind::rms || !zero_centered_norm,
        "gpt: zero_centered_norm needs norm rms, got layer");
  check(!activation || gelu == Gelu::tanh || *activation == Activation::gelu_erf,
        "gpt: gelu erf needs activation auto or gelu_erf, got {}",
        word_of(kActivationWords.all, activation));
  check(rotary || rotary_dim == 0, "gpt: rotary_dim needs rotary positions, got {}", places);
  check(rotary_dim % 2 == 0 && rotary_dim <= head_dim(),
        "gpt: rotary_dim must be even and at most head_dim {}, got {}", head_dim(), rotary_dim);
  check(pattern.find('w') == std::string::npos || window > 0,
        "gpt: a pattern with w, \"{}\", needs a window, got 0", pattern);
  check(vocab >= 1, "gpt: vocab must be at least 1, got {}", vocab);
  for (std::size_t i = 0; i < pattern.size(); ++i)
    mixer_kind(*this, static_cast<std::int64_t>(i));  // throws on an unknown letter
  if (has_delta())
    delta_options().validate();
  else
    check(delta.key_heads == 0 && delta.value_heads == 0 && delta.key_dim == 0 &&
              delta.value_dim == 0 && delta.conv == 0,
          "gpt: delta_key_heads, delta_value_heads, delta_key_dim, delta_value_dim and delta_conv "
          "need a pattern with d, got \"{}\"",
          pattern);
  if (attention == AttentionKind::mla) {
    const MlaOptions m = mla_options();
    check(rotary, "gpt: attention mla needs rotary positions, got {}", places);
    check(kv_heads == 0, "gpt: attention mla has no kv_heads, got {}", kv_heads);
    check(!qk_norm, "gpt: attention mla has norms of its own and takes no qk_norm");
    check(head_size == 0 && attn_bias == AttentionBias::automatic,
          "gpt: attention mla has sizes of its own and no biases, and takes no head_dim and no "
          "attn_bias");
    check(rotary_dim == 0 && clip_qkv == 0 && !attn_gate,
          "gpt: attention mla takes no rotary_dim, clip_qkv and attn_gate");
    check(m.rope >= 2 && m.rope % 2 == 0, "gpt: qk_rope must be even and at least 2, got {}",
          m.rope);
  } else {
    check(mla.q_lora == 0 && mla.kv_lora == 0 && mla.nope == 0 && mla.rope == 0 && mla.v_head == 0,
          "gpt: q_lora, kv_lora, qk_nope, qk_rope and v_head need attention mla");
  }
  check(
      mtp.depths < seq,
      "gpt: mtp depths must be below seq {}, as depth d predicts the token d + 1 places on, got {}",
      seq, mtp.depths);
  validate_experts(*this);
  // Blocks are made in order to be counted, so each matrix must first fit into a shape.
  const std::int64_t expert_rows = std::max<std::int64_t>(moe.experts, 1) * expert_ffn_dim();
  const std::int64_t rows = std::max({dim, ffn_dim(), expert_rows});
  const double least = static_cast<double>(rows) * static_cast<double>(dim);
  const double parameters = least > kMostParameters ? least : count_parameters(*this);
  check(parameters <= kMostParameters, "gpt: the model must have at most {} parameters, got {}",
        kMostParameters, parameters);
}

std::int64_t GptConfig::rotated() const {
  if (attention == AttentionKind::mla) return mla_options().rope;
  return rotary_dim ? rotary_dim : head_dim();
}

char GptConfig::mixer(std::int64_t block) const {
  return pattern.empty() ? 'a' : pattern[static_cast<std::size_t>(block) % pattern.size()];
}

GatedDeltaNetOptions GptConfig::delta_options() const {
  return {.key_heads = delta.key_heads ? delta.key_heads : heads,
          .value_heads = delta.value_heads ? delta.value_heads : heads,
          .key_dim = delta.key_dim ? delta.key_dim : head_dim(),
          .value_dim = delta.value_dim ? delta.value_dim : head_dim(),
          .conv = delta.conv ? delta.conv : 4,
          .norm_eps = norm_eps};
}

MlaOptions GptConfig::mla_options() const {
  const std::int64_t d = head_dim();
  return {.q_lora = mla.q_lora,
          .kv_lora = mla.kv_lora ? mla.kv_lora : 4 * d,
          .nope = mla.nope ? mla.nope : d,
          .rope = mla.rope ? mla.rope : d / 2,
          .v_head = mla.v_head ? mla.v_head : d,
          .norm_eps = norm_eps,
          .window = window,
          .scale_factor = rope_scaling.score_factor(),
          .dropout = dropout};
}

Activation GptConfig::mlp_activation() const {
  if (activation) return *activation;
  const Activation usual = preset().activation;
  return usual == Activation::gelu_tanh && gelu == Gelu::erf ? Activation::gelu_erf : usual;
}

std::int64_t GptConfig::ffn_dim() const {
  if (ffn) return ffn;
  if (!is_gated(mlp_activation())) return 4 * dim;
  return (8 * dim + 95) / 96 * 32;  // 8/3 dim, rounded up to a multiple of 32
}

GptConfig GptConfig::reduced() const {
  GptConfig c = *this;
  const ArchPreset& usual = preset();
  if (positions == usual.positions) c.positions = Positions::automatic;
  if (norm == usual.norm) c.norm = NormKind::automatic;
  if (mlp_bias == usual.mlp_bias) c.mlp_bias = {};
  if (attn_bias == usual.attn_bias) c.attn_bias = AttentionBias::automatic;
  if (tie == usual.tie) c.tie = {};
  c.activation = {};  // `gelu` is its own setting
  if (activation && *activation != c.mlp_activation()) c.activation = activation;
  return c;
}

GptConfig GptConfig::resolved() const {
  GptConfig c = *this;
  c.ffn = ffn_dim();
  c.positions = position_kind();
  c.norm = norm_kind();
  c.activation = mlp_activation();
  c.gelu = c.activation == Activation::gelu_erf ? Gelu::erf : Gelu::tanh;
  c.mlp_bias = mlp_biases();
  c.tie = tied();
  if (attention == AttentionKind::mla) {
    c.mla = mla_options();
  } else {
    c.kv_heads = kv_head_count();
    c.head_size = head_dim();
    c.attn_bias = biases();
  }
  if (has_delta()) c.delta = delta_options();
  if (moe.experts > 0) {
    c.moe.ffn = expert_ffn_dim();
    RouterOptions& route = c.moe.router.route;
    if (route.groups > 0 && route.group_topk > 0) route.group_best = router_group_best(route);
  } else {
    c.moe = {};
    c.moe_every = 1;
    c.dense_layers = 0;
  }
  return c;
}

bool GptConfig::has_experts(std::int64_t block) const {
  if (moe.experts == 0) return false;
  return moe_layers.empty() ? block >= dense_layers && block % moe_every == 0
                            : moe_layers[static_cast<std::size_t>(block)] != 0;
}

std::int64_t GptConfig::parameter_count() const {
  return static_cast<std::int64_t>(count_parameters(*this));
}

double GptConfig::flops_per_token() const {
  const auto width = static_cast<double>(dim), head = width * static_cast<double>(vocab);
  const double blocks = over_blocks(*this, mtp.depths, [&](const Block& block) {
    return block.mixer->multiply_adds(seq) + block.feed_forward->multiply_adds();
  });
  // Each depth has a block, a projection and the head.
  return 6 * (blocks + head + static_cast<double>(mtp.depths) * (2 * width * width + head));
}

}  // namespace weft::nn
