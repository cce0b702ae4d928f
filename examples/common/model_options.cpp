// The model that the options describe.
#include <algorithm>

#include "weft/core/error.h"
#include "weft/examples/common/options.h"

namespace weft::train {
namespace {

nn::Balance balance_of(const std::string& aux) {
  return aux == "seq"      ? nn::Balance::sequence
         : aux == "global" ? nn::Balance::global
                           : nn::Balance::aux;
}

// The widths of experts and shared expert, where the options leave them open: a token's experts
// together cost what the MLP in their place would.
void set_widths(nn::GptConfig& c, const Options& o) {
  constexpr std::int64_t kMultiple = 16;
  const std::int64_t sharing = o.topk + (o.shared_ffn < 0 ? 1 : 0);
  const std::int64_t part =
      (c.ffn_dim() + sharing * kMultiple / 2) / (sharing * kMultiple) * kMultiple;
  c.moe.ffn = o.expert_ffn ? o.expert_ffn : std::max(part, kMultiple);
  c.moe.shared_ffn = o.shared_ffn < 0 ? c.moe.ffn : o.shared_ffn;
}

}  // namespace

bool Options::counts_balance() const {
  return experts > 0 && (aux == "aux" || aux == "seq" || aux == "global") && aux_coeff > 0;
}

nn::GptConfig Options::model() const {
  nn::GptConfig c;
  c.arch = arch == "llama" ? nn::Arch::llama : nn::Arch::gpt2;
  c.layers = layers;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.dim = dim;
  c.ffn = ffn;
  c.seq = seq;
  c.vocab = vocab;
  c.dropout = dropout;
  c.qk_norm = qk_norm;
  c.rope_theta = rope_theta;
  c.window = window;
  c.attention = attention == "mla" ? nn::AttentionKind::mla : nn::AttentionKind::mha;
  c.q_lora = q_lora;
  c.kv_lora = kv_lora;
  c.qk_nope = qk_nope;
  c.qk_rope = qk_rope;
  c.v_head = v_head;
  c.pattern = pattern;
  c.delta_key_heads = delta_key_heads;
  c.delta_value_heads = delta_value_heads;
  c.delta_key_dim = delta_key_dim;
  c.delta_value_dim = delta_value_dim;
  c.delta_conv = delta_conv;
  c.tie = tie == "auto" ? arch == "gpt2" : tie == "on";
  c.mtp = {.depths = mtp, .weight = mtp_weight, .repeated = mtp_repeat, .detached = mtp_detach};
  c.recompute = recompute == "full"        ? nn::Recompute::full
                : recompute == "selective" ? nn::Recompute::selective
                                           : nn::Recompute::none;
  if (experts == 0) return c;
  c.moe.experts = experts;
  c.moe.latent = latent;
  c.moe.shared_gate = shared_gate;
  nn::RouterConfig& r = c.moe.router;
  r.route = {.topk = topk,
             .score = router == "sigmoid" ? RouterScore::sigmoid : RouterScore::softmax,
             .groups = groups,
             .group_topk = group_topk};
  r.expert_bias = aux == "bias";
  if (counts_balance()) r.balance = {{balance_of(aux), aux_coeff}};
  r.z_loss = z_loss;
  r.capacity_factor = capacity;
  r.force_balance = force_balance;
  c.moe_every = moe_every;
  set_widths(c, *this);
  return c;
}

}  // namespace weft::train
