#include "weft/distributed/plan.h"

#include "weft/core/error.h"
#include "weft/nn/gpt_layers.h"

namespace weft::distributed {
namespace {

// Blocks of the trunk and of MTP depths.
constexpr const char* kBlock = R"((blocks\.\d+|mtp\.\d+\.block)\.)";

std::string in_block(const char* name) { return std::string(kBlock) + name; }

void add_attention(std::vector<Plan::Rule>& rules, const nn::GptConfig& c) {
  const Units heads{"heads", c.heads, c.head_dim()};
  const Units queries{"heads", c.heads, c.head_dim() * (c.attn_gate ? 2 : 1)};
  // A norm over all heads of keys counts each once, so that no two ranks may hold the same one.
  const Units kv{"key heads", c.kv_head_count(), c.head_dim(), !c.qk_norm_joint};
  rules.push_back({in_block("attn"), Placement::heads(c.heads, false)});
  rules.push_back({in_block(R"(attn\.qkv)"), Placement::column({queries, kv, kv})});
  rules.push_back({in_block(R"(attn\.proj)"), Placement::row(heads)});
  if (c.qk_norm_joint) {
    rules.push_back({in_block(R"(attn\.q_norm)"), Placement::norm(heads)});
    rules.push_back({in_block(R"(attn\.k_norm)"), Placement::norm(kv)});
    return;
  }
  // Their gradients cover this rank's heads only.
  if (c.qk_norm) rules.push_back({in_block(R"(attn\.[qk]_norm)"), Placement::whole(true)});
}

// Every rank computes everything between x and the heads, with gradients from its own heads: only x
// is gathered (or its gradient summed), and the gradients of the latents' weights are partial.
void add_latent_attention(std::vector<Plan::Rule>& rules, const nn::GptConfig& c) {
  const nn::MlaOptions m = c.mla_options();
  rules.push_back({in_block("mla"), Placement::heads(c.heads, true)});
  rules.push_back(
      {in_block(R"(mla\.q_up)"), Placement::column({{"heads", c.heads, m.nope + m.rope}}, false)});
  rules.push_back({in_block(R"(mla\.kv_up)"),
                   Placement::column({{"heads", c.heads, m.nope + m.v_head}}, false)});
  rules.push_back({in_block(R"(mla\.proj)"), Placement::row({"heads", c.heads, m.v_head})});
  rules.push_back({in_block(R"(mla\.(q_down|q_norm|kv_down|kv_norm))"), Placement::whole(true)});
}

// A key head goes with the value heads that share it. The norm's gradient covers this rank's heads.
void add_delta_net(std::vector<Plan::Rule>& rules, const nn::GptConfig& c) {
  const nn::GatedDeltaNetOptions d = c.delta_options();
  const std::int64_t sharers = d.value_heads / d.key_heads;
  const auto heads = [&](std::int64_t width) { return Units{"key heads", d.key_heads, width}; };
  const Units keys = heads(d.key_dim), values = heads(sharers * d.value_dim), each = heads(sharers);
  rules.push_back(
      {in_block("delta"),
       Placement::own({{"conv", {keys, keys, values}}, {"a_log", {each}}, {"dt_bias", {each}}})});
  rules.push_back(
      {in_block(R"(delta\.in_proj)"), Placement::column({keys, keys, values, values, each, each})});
  rules.push_back({in_block(R"(delta\.norm)"), Placement::whole(true)});
  rules.push_back({in_block(R"(delta\.out_proj)"), Placement::row(values)});
}

void add_mlp(std::vector<Plan::Rule>& rules, const std::string& name, const nn::GptConfig& c,
             std::int64_t width) {
  const Units features{"hidden features", width};
  if (is_gated(c.mlp_activation()))
    rules.push_back({name + R"(\.gate_up)", Placement::column({features, features})});
  else
    rules.push_back({name + R"(\.up)", Placement::column({features})});
  rules.push_back({name + R"(\.down)", Placement::row(features)});
}

// The layers of blocks that recompute gathered rows.
std::string gathers_again(const nn::GptConfig& c) {
  std::string numbers;
  for (std::int64_t i = 0; i < c.layers; ++i)
    if (has(c.recompute_of(i), nn::Recompute::gathered))
      numbers += (numbers.empty() ? "" : "|") + std::to_string(i);
  if (numbers.empty()) return {};
  const bool last = has(c.recompute_of(c.layers - 1), nn::Recompute::gathered);
  return "(blocks\\.(" + numbers + ")" + (last ? R"(|mtp\.\d+\.block)" : "") + R"()\..*)";
}

}  // namespace

Plan gpt_plan(const nn::GptConfig& c, const GptPlanOptions& o) {
  std::int64_t attentions = 0, experts = 0;
  for (std::int64_t i = 0; i < c.layers; ++i) {
    attentions += c.is_attention(i);
    experts += c.has_experts(i);
  }
  const bool learned = c.position_kind() == nn::Positions::learned;
  const bool scatters = o.sequence && learned;
  Plan plan;
  plan.sequence = o.sequence;
  plan.overlap = o.overlap;
  std::vector<Plan::Rule>& rules = plan.rules;
  if (o.sequence) rules.push_back({"", Placement::tokens(scatters)});
  rules.push_back({"embed", Placement::table(c.vocab, o.sequence && !scatters)});
  rules.push_back({"head", Placement::head(c.vocab)});
  rules.push_back({"loss", Placement::loss(c.vocab)});
  // Added before tokens are split, so every rank sees the full gradient.
  if (learned) rules.push_back({"positions", Placement::whole(false)});
  if (attentions > 0) {
    if (c.attention == nn::AttentionKind::mla)
      add_latent_attention(rules, c);
    else
      add_attention(rules, c);
  }
  if (c.has_delta()) add_delta_net(rules, c);
  if (experts < c.layers) add_mlp(rules, in_block("mlp"), c, c.ffn_dim());
  if (experts > 0 && c.moe.shared_ffn > 0)
    add_mlp(rules, in_block(R"(moe\.shared\.mlp)"), c, c.moe.shared_ffn);
  if (o.sequence) plan.gathers_again = gathers_again(c);
  // The rest: norms, routers, experts, projections of MTP depths.
  rules.push_back({".*", Placement::whole(o.sequence)});
  return plan;
}

}  // namespace weft::distributed
