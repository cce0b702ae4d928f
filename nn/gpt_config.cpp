#include <algorithm>
#include <cmath>

#include "weft/core/error.h"
#include "weft/nn/gpt.h"

namespace weft::nn {
namespace {

void validate_experts(const GptConfig& c) {
  if (c.moe.experts == 0)
    return check(c.moe_layers.empty(), "gpt: moe_layers needs experts, got experts 0");
  check(c.moe.experts >= 1, "gpt: experts must be at least 0, got {}", c.moe.experts);
  check(c.moe.ffn >= 0, "gpt: expert_ffn must be at least 0, got {}", c.moe.ffn);
  MoeOptions moe = c.moe;
  moe.ffn = c.expert_ffn_dim();
  moe.validate();
  check(c.moe_every >= 1, "gpt: moe_every must be at least 1, got {}", c.moe_every);
  check(c.moe_layers.empty() || static_cast<std::int64_t>(c.moe_layers.size()) == c.layers,
        "gpt: moe_layers must have one number for each of the {} layers, got {}", c.layers,
        c.moe_layers.size());
  for (const std::uint8_t has : c.moe_layers)
    check(has <= 1, "gpt: moe_layers must hold 0 or 1, got {}", static_cast<int>(has));
}

}  // namespace

void GptConfig::validate() const {
  check(layers >= 1, "gpt: layers must be at least 1, got {}", layers);
  check(heads >= 1, "gpt: heads must be at least 1, got {}", heads);
  check(dim >= 1, "gpt: dim must be at least 1, got {}", dim);
  check(dim % heads == 0, "gpt: dim {} must be a multiple of heads {}", dim, heads);
  check(kv_heads >= 0, "gpt: kv_heads must be at least 0, got {}", kv_heads);
  check(heads % kv_head_count() == 0, "gpt: heads {} must be a multiple of kv_heads {}", heads,
        kv_heads);
  check(arch != Arch::llama || head_dim() % 2 == 0,
        "gpt: dim / heads must be even for rotary positions, got {} / {} = {}", dim, heads,
        head_dim());
  check(ffn >= 0, "gpt: ffn must be at least 0, got {}", ffn);
  check(seq >= 1, "gpt: seq must be at least 1, got {}", seq);
  check(vocab >= 1, "gpt: vocab must be at least 1, got {}", vocab);
  check(dropout >= 0 && dropout < 1, "gpt: dropout must be in [0, 1), got {}", dropout);
  check(rope_theta > 0, "gpt: rope_theta must be above 0, got {}", rope_theta);
  check(norm_eps >= 0, "gpt: norm_eps must be at least 0, got {}", norm_eps);
  check(window >= 0, "gpt: window must be at least 0, got {}", window);
  check(pattern.find_first_not_of("ad") == std::string::npos,
        "gpt: pattern must consist of a (attention) and d (gated delta net), got \"{}\"", pattern);
  if (pattern.find('d') != std::string::npos)
    delta_options().validate();
  else
    check(delta_key_heads == 0 && delta_value_heads == 0 && delta_key_dim == 0 &&
              delta_value_dim == 0 && delta_conv == 0,
          "gpt: delta_key_heads, delta_value_heads, delta_key_dim, delta_value_dim and delta_conv "
          "need a pattern with d, got \"{}\"",
          pattern);
  if (attention == AttentionKind::mla) {
    const MlaOptions m = mla_options();
    check(arch == Arch::llama, "gpt: attention mla needs arch llama and its rotary positions");
    check(kv_heads == 0, "gpt: attention mla has no kv_heads, got {}", kv_heads);
    check(!qk_norm, "gpt: attention mla has norms of its own and takes no qk_norm");
    check(m.q_lora >= 0 && m.kv_lora >= 1 && m.nope >= 1 && m.v_head >= 1,
          "gpt: q_lora, kv_lora, qk_nope and v_head must be at least 0, got {}, {}, {} and {}",
          q_lora, kv_lora, qk_nope, v_head);
    check(m.rope >= 2 && m.rope % 2 == 0, "gpt: qk_rope must be even and at least 2, got {}",
          m.rope);
  } else {
    check(q_lora == 0 && kv_lora == 0 && qk_nope == 0 && qk_rope == 0 && v_head == 0,
          "gpt: q_lora, kv_lora, qk_nope, qk_rope and v_head need attention mla");
  }
  check(mtp.depths >= 0, "gpt: mtp depths must be at least 0, got {}", mtp.depths);
  check(
      mtp.depths < seq,
      "gpt: mtp depths must be below seq {}, as depth d predicts the token d + 1 places on, got {}",
      seq, mtp.depths);
  check(mtp.weight >= 0 && std::isfinite(mtp.weight), "gpt: mtp weight must be at least 0, got {}",
        mtp.weight);
  validate_experts(*this);
}

bool GptConfig::is_delta(std::int64_t block) const {
  return !pattern.empty() && pattern[static_cast<std::size_t>(block) % pattern.size()] == 'd';
}

GatedDeltaNetOptions GptConfig::delta_options() const {
  return {.key_heads = delta_key_heads ? delta_key_heads : heads,
          .value_heads = delta_value_heads ? delta_value_heads : heads,
          .key_dim = delta_key_dim ? delta_key_dim : head_dim(),
          .value_dim = delta_value_dim ? delta_value_dim : head_dim(),
          .conv = delta_conv ? delta_conv : 4,
          .norm_eps = norm_eps};
}

MlaOptions GptConfig::mla_options() const {
  const std::int64_t d = head_dim();
  return {.q_lora = q_lora,
          .kv_lora = kv_lora ? kv_lora : 4 * d,
          .nope = qk_nope ? qk_nope : d,
          .rope = qk_rope ? qk_rope : d / 2,
          .v_head = v_head ? v_head : d,
          .norm_eps = norm_eps,
          .window = window,
          .dropout = dropout};
}

std::int64_t GptConfig::ffn_dim() const {
  if (ffn) return ffn;
  if (arch == Arch::gpt2) return 4 * dim;
  return (8 * dim + 95) / 96 * 32;  // 8/3 dim, rounded up to a multiple of 32
}

bool GptConfig::has_experts(std::int64_t block) const {
  if (moe.experts == 0) return false;
  return moe_layers.empty() ? block % moe_every == 0
                            : moe_layers[static_cast<std::size_t>(block)] != 0;
}

namespace {

// The blocks of `depths` MTP layers are like the last one.
std::int64_t blocks_with_experts(const GptConfig& c, std::int64_t depths) {
  std::int64_t n = c.has_experts(c.layers - 1) ? depths : 0;
  for (std::int64_t i = 0; i < c.layers; ++i) n += c.has_experts(i);
  return n;
}

std::int64_t blocks_with_delta(const GptConfig& c, std::int64_t depths) {
  std::int64_t n = c.is_delta(c.layers - 1) ? depths : 0;
  for (std::int64_t i = 0; i < c.layers; ++i) n += c.is_delta(i);
  return n;
}

// Weights of a gated delta net's products, and of its convolution.
std::int64_t delta_weights(const GptConfig& c) {
  const GatedDeltaNetOptions d = c.delta_options();
  return c.dim * GatedDeltaNet::inputs(d) + d.conv * GatedDeltaNet::channels(d) +
         d.value_heads * d.value_dim * c.dim;
}

// Weights of attention's products, without biases.
std::int64_t attention_weights(const GptConfig& c) {
  if (c.attention == AttentionKind::mha)
    return 2 * c.dim * c.head_dim() * (c.heads + c.kv_head_count());
  const MlaOptions m = c.mla_options();
  const std::int64_t queries = c.heads * (m.nope + m.rope);
  return (m.q_lora ? (c.dim + queries) * m.q_lora : c.dim * queries) +
         c.dim * (m.kv_lora + m.rope) + m.kv_lora * c.heads * (m.nope + m.v_head) +
         c.heads * m.v_head * c.dim;
}

// Weights of an MLP, without biases.
std::int64_t mlp_weights(const GptConfig& c, std::int64_t in, std::int64_t width) {
  return (c.arch == Arch::gpt2 ? 2 : 3) * in * width;
}

// Weights of an MoE layer, of which `experts` experts count.
std::int64_t moe_weights(const GptConfig& c, std::int64_t experts) {
  const std::int64_t in = c.moe.latent ? c.moe.latent : c.dim;
  return c.dim * c.moe.experts + experts * mlp_weights(c, in, c.expert_ffn_dim()) +
         mlp_weights(c, c.dim, c.moe.shared_ffn) + (c.moe.shared_gate ? c.dim : 0) +
         2 * c.dim * c.moe.latent;
}

}  // namespace

std::int64_t GptConfig::parameter_count() const {
  const bool gpt2 = arch == Arch::gpt2;
  const std::int64_t q = heads * head_dim(), kv = kv_head_count() * head_dim(), f = ffn_dim();
  const std::int64_t norm = gpt2 ? 2 * dim : dim;
  std::int64_t attn = attention_weights(*this);
  if (gpt2) attn += q + 2 * kv + dim;  // biases of qkv and proj
  if (qk_norm) attn += 2 * head_dim();
  if (attention == AttentionKind::mla) attn += mla_options().q_lora + mla_options().kv_lora;
  // Decay and its bias of each head, and the norm of all heads.
  const GatedDeltaNetOptions d = delta_options();
  const std::int64_t delta = delta_weights(*this) + 2 * d.value_heads + d.value_dim;
  std::int64_t dense = mlp_weights(*this, dim, f), sparse = moe_weights(*this, moe.experts);
  if (moe.router.bias) sparse += moe.experts;
  if (gpt2) {  // biases
    dense += f + dim;
    sparse += moe.experts * (expert_ffn_dim() + (moe.latent ? moe.latent : dim));
    if (moe.shared_ffn) sparse += moe.shared_ffn + dim;
  }
  const std::int64_t depths = mtp.repeated ? std::min<std::int64_t>(mtp.depths, 1) : mtp.depths;
  const std::int64_t with_experts = blocks_with_experts(*this, depths);
  const std::int64_t with_delta = blocks_with_delta(*this, depths);
  return vocab * dim * (tied() ? 1 : 2) + (gpt2 ? seq * dim : 0) + norm +
         depths * (2 * dim * dim + 3 * norm) + (layers + depths) * 2 * norm +
         (layers + depths - with_delta) * attn + with_delta * delta +
         (layers + depths - with_experts) * dense + with_experts * sparse;
}

double GptConfig::flops_per_token() const {
  const std::int64_t q = heads * head_dim();
  const std::int64_t with_experts = blocks_with_experts(*this, mtp.depths);
  const std::int64_t with_delta = blocks_with_delta(*this, mtp.depths);
  const std::int64_t all =
      layers + mtp.depths;  // each depth has a block, a projection and the head
  // The delta rule reads its state twice, writes it once and decays it.
  const GatedDeltaNetOptions d = delta_options();
  const std::int64_t delta = delta_weights(*this) + 4 * d.value_heads * d.key_dim * d.value_dim;
  const std::int64_t products = (all - with_delta) * attention_weights(*this) + with_delta * delta +
                                (all - with_experts) * mlp_weights(*this, dim, ffn_dim()) +
                                with_experts * moe_weights(*this, moe.router.route.topk) +
                                vocab * dim + mtp.depths * (2 * dim * dim + vocab * dim);
  // A token attends to (seq + 1) / 2 others on average; with a window, the first ones to fewer.
  const double n = static_cast<double>(seq);
  const double w = window ? std::fmin(static_cast<double>(window), n) : n;
  const double attended = (w * (w + 1) / 2 + (n - w) * w) / n;
  const MlaOptions m = mla_options();
  const std::int64_t scores_and_values =
      attention == AttentionKind::mla ? heads * (m.nope + m.rope + m.v_head) : 2 * q;
  const double pairs = static_cast<double>((all - with_delta) * scores_and_values) * attended;
  return 6.0 * (static_cast<double>(products) + pairs);
}

}  // namespace weft::nn
