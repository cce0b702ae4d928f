#include "weft/nn/gpt_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/core/error.h"
#include "weft/nn/gpt_layers.h"

namespace weft::nn {
namespace {

// A double is exact up to here, so parameter_count() is exact.
constexpr double kMostParameters = 0x1p53;

double count_parameters(const GptConfig& c);

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
  check(dim % heads == 0, "gpt: dim {} must be a multiple of heads {}", dim, heads);
  check(heads % kv_head_count() == 0, "gpt: heads {} must be a multiple of kv_heads {}", heads,
        kv_heads);
  check(arch != Arch::llama || head_dim() % 2 == 0,
        "gpt: dim / heads must be even for rotary positions, got {} / {} = {}", dim, heads,
        head_dim());
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
    check(arch == Arch::llama, "gpt: attention mla needs arch llama and its rotary positions");
    check(kv_heads == 0, "gpt: attention mla has no kv_heads, got {}", kv_heads);
    check(!qk_norm, "gpt: attention mla has norms of its own and takes no qk_norm");
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
  const double parameters = count_parameters(*this);
  check(parameters <= kMostParameters, "gpt: the model must have at most {} parameters, got {}",
        kMostParameters, parameters);
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
          .dropout = dropout};
}

std::int64_t GptConfig::ffn_dim() const {
  if (ffn) return ffn;
  if (arch == Arch::gpt2) return 4 * dim;
  return (8 * dim + 95) / 96 * 32;  // 8/3 dim, rounded up to a multiple of 32
}

GptConfig GptConfig::resolved() const {
  GptConfig c = *this;
  c.ffn = ffn_dim();
  c.tie = tied();
  if (attention == AttentionKind::mla)
    c.mla = mla_options();
  else
    c.kv_heads = kv_head_count();
  if (has_delta()) c.delta = delta_options();
  if (moe.experts > 0) {
    c.moe.ffn = expert_ffn_dim();
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

namespace {

using detail::real;

// The blocks of `depths` MTP layers are copies of the last block.
std::int64_t blocks_with_experts(const GptConfig& c, std::int64_t depths) {
  std::int64_t n = c.has_experts(c.layers - 1) ? depths : 0;
  for (std::int64_t i = 0; i < c.layers; ++i) n += c.has_experts(i);
  return n;
}

// The number of blocks with a mixer; MTP blocks as above.
std::int64_t blocks_with(const MixerKind& kind, const GptConfig& c, std::int64_t depths) {
  std::int64_t n = c.mixer(c.layers - 1) == kind.letter ? depths : 0;
  for (std::int64_t i = 0; i < c.layers; ++i) n += c.mixer(i) == kind.letter;
  return n;
}

// Weights of an MLP, without biases.
double mlp_weights(const GptConfig& c, std::int64_t in, std::int64_t width) {
  return (c.arch == Arch::gpt2 ? 2 : 3) * real(in) * real(width);
}

// Weights of an MoE layer with `experts` experts: all of them, or those that a token uses.
double moe_weights(const GptConfig& c, std::int64_t experts) {
  const std::int64_t in = c.moe.latent ? c.moe.latent : c.dim;
  return real(c.dim * c.moe.experts) + real(experts) * mlp_weights(c, in, c.expert_ffn_dim()) +
         mlp_weights(c, c.dim, c.moe.shared_ffn) + (c.moe.shared_gate ? real(c.dim) : 0) +
         2 * real(c.dim) * real(c.moe.latent);
}

double count_parameters(const GptConfig& c) {
  const bool gpt2 = c.arch == Arch::gpt2;
  const double dim = real(c.dim), f = real(c.ffn_dim());
  const double norm = gpt2 ? 2 * dim : dim;
  double dense = mlp_weights(c, c.dim, c.ffn_dim()), sparse = moe_weights(c, c.moe.experts);
  if (c.moe.router.bias) sparse += real(c.moe.experts);
  if (gpt2) {  // biases
    dense += f + dim;
    sparse +=
        real(c.moe.experts) * real(c.expert_ffn_dim() + (c.moe.latent ? c.moe.latent : c.dim));
    if (c.moe.shared_ffn) sparse += real(c.moe.shared_ffn + c.dim);
  }
  const std::int64_t depths =
      c.mtp.repeated ? std::min<std::int64_t>(c.mtp.depths, 1) : c.mtp.depths;
  const std::int64_t with_experts = blocks_with_experts(c, depths);
  const std::int64_t all = c.layers + depths;
  double mixers = 0;
  for (const MixerKind& kind : mixer_kinds())
    mixers += real(blocks_with(kind, c, depths)) * kind.cost(c).parameters;
  return real(c.vocab) * dim * (c.tied() ? 1 : 2) + (gpt2 ? real(c.seq) * dim : 0) + norm +
         real(depths) * (2 * dim * dim + 3 * norm) + real(all) * 2 * norm + mixers +
         real(all - with_experts) * dense + real(with_experts) * sparse;
}

}  // namespace

std::int64_t GptConfig::parameter_count() const {
  return static_cast<std::int64_t>(count_parameters(*this));
}

double GptConfig::flops_per_token() const {
  const std::int64_t with_experts = blocks_with_experts(*this, mtp.depths);
  // Each depth has a block, a projection and the head.
  const std::int64_t all = layers + mtp.depths;
  double products = 0, pairs = 0;
  for (const MixerKind& kind : mixer_kinds()) {
    const double n = real(blocks_with(kind, *this, mtp.depths));
    const MixerCost cost = kind.cost(*this);
    products += n * cost.products;
    pairs += n * cost.pairs;
  }
  products += real(all - with_experts) * mlp_weights(*this, dim, ffn_dim()) +
              real(with_experts) * moe_weights(*this, moe.router.route.topk) + real(vocab * dim) +
              real(mtp.depths) * real(2 * dim * dim + vocab * dim);
  // A token attends to (seq + 1) / 2 others on average; with a window, the first ones to fewer.
  const double n = real(seq);
  const double w = window ? std::fmin(real(window), n) : n;
  const double attended = (w * (w + 1) / 2 + (n - w) * w) / n;
  return 6.0 * (products + pairs * attended);
}

}  // namespace weft::nn
