#include "weft/core/error.h"
#include "weft/nn/hf_decoder.h"

namespace weft::nn {
namespace {

// DeepSeek-V3: latent attention, routers that choose among groups, MTP layers after the others.

// The class multiplies scores by it under every type of scaling, latent attention under yarn alone.
void check_mscale(const HfConfig& h) {
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (h.has(key) && h.at(key).is_object())
      HfConfig(h.at(key), message("{}: {}", h.where(), key)).only("mscale_all_dim", 0);
}

GptConfig read_deepseek(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {});
  if (c.rope_scaling.kind != RopeScaling::Kind::yarn) check_mscale(h);
  c.attention = AttentionKind::mla;
  c.kv_heads = c.head_size = 0;  // num_key_value_heads is that of heads, head_dim the rotated part
  h.only("num_key_value_heads", c.heads);
  h.only("rms_norm_eps", 1e-6);  // the class gives the norms of latents no other
  h.only("attention_bias", false);
  h.only("scoring_func", "sigmoid");
  h.only("topk_method", "noaux_tc");
  h.only("moe_layer_freq", 1);
  c.mla.q_lora = h.size("q_lora_rank", h.names("q_lora_rank") ? 0 : 1536);
  c.mla.kv_lora = h.size("kv_lora_rank", 512);
  c.mla.nope = h.size("qk_nope_head_dim", 128);
  c.mla.rope = h.size("qk_rope_head_dim", 64);
  c.mla.v_head = h.size("v_head_dim", 128);
  h.only("rope_interleave", true);
  c.moe.experts = h.size("n_routed_experts", 256);
  c.moe.ffn = h.size("moe_intermediate_size", 2048);
  c.moe.shared_ffn = c.moe.ffn * h.size("n_shared_experts", 1);
  c.dense_layers = h.size("first_k_dense_replace", 3);
  RouterConfig& r = c.moe.router;
  r.expert_bias = true;
  r.route.score = RouterScore::sigmoid;
  r.route.topk = h.size("num_experts_per_tok", 8);
  r.route.normalise = h.flag("norm_topk_prob", true);
  r.route.scaling = h.number("routed_scaling_factor", 2.5);
  if (r.route.topk == 1 && r.route.normalise)
    h.refuse("num_experts_per_tok", "2 or more with norm_topk_prob");
  const std::int64_t groups = h.size("n_group", 8), kept = h.size("topk_group", 4);
  if (groups > 1) {
    r.route.groups = groups;
    r.route.group_topk = kept;
    r.route.group_best = 2;
  }
  c.mtp.depths = h.size("num_nextn_predict_layers", 0);
  return c;
}

void write_deepseek(const GptConfig& c, io::Json& out) {
  const MlaOptions m = c.mla_options();
  const RouterOptions& route = c.moe.router.route;
  hf::write_decoder(c, out);
  out.set("num_key_value_heads", c.heads);
  out.set("head_dim", m.rope);
  out.set("attention_bias", false);
  out.set("q_lora_rank", m.q_lora > 0 ? io::Json(m.q_lora) : io::Json());
  out.set("kv_lora_rank", m.kv_lora);
  out.set("qk_nope_head_dim", m.nope);
  out.set("qk_rope_head_dim", m.rope);
  out.set("qk_head_dim", m.nope + m.rope);
  out.set("v_head_dim", m.v_head);
  out.set("rope_interleave", true);
  out.set("moe_intermediate_size", c.expert_ffn_dim());
  out.set("n_routed_experts", c.moe.experts);
  out.set("n_shared_experts", c.moe.shared_ffn / c.expert_ffn_dim());
  out.set("num_experts_per_tok", route.topk);
  out.set("n_group", std::max<std::int64_t>(route.groups, 1));
  out.set("topk_group", std::max<std::int64_t>(route.group_topk, 1));
  out.set("first_k_dense_replace", c.dense_layers);
  out.set("norm_topk_prob", route.normalise);
  out.set("routed_scaling_factor", route.scaling);
  out.set("scoring_func", "sigmoid");
  out.set("topk_method", "noaux_tc");
  out.set("moe_layer_freq", 1);
  out.set("num_nextn_predict_layers", c.mtp.depths);
}

// Row numbers that move pairs 2 j, 2 j + 1 of the last `rope` rows of each head to j, rope / 2 + j.
std::vector<std::int64_t> halves(std::int64_t heads, std::int64_t before, std::int64_t rope) {
  std::vector<std::int64_t> rows;
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int64_t first = h * (before + rope);
    for (std::int64_t i = 0; i < before; ++i) rows.push_back(first + i);
    for (std::int64_t i = 0; i < rope; ++i)
      rows.push_back(first + before + i % 2 * (rope / 2) + i / 2);
  }
  return rows;
}

void add_latent_attention(const GptConfig& c, const std::string& ours, const std::string& theirs,
                          hf::Tensors& t) {
  const MlaOptions m = c.mla_options();
  const std::int64_t q = c.heads * (m.nope + m.rope);
  if (m.q_lora > 0) {
    t.add(ours + "q_down.weight", theirs + "q_a_proj.weight", {m.q_lora, c.dim});
    t.add(ours + "q_norm.weight", theirs + "q_a_layernorm.weight", {m.q_lora});
  }
  const Shape queries{q, m.q_lora > 0 ? m.q_lora : c.dim}, latent{m.kv_lora + m.rope, c.dim};
  t.add(ours + "q_up.weight", queries,
        {{theirs + (m.q_lora > 0 ? "q_b_proj.weight" : "q_proj.weight"), queries,
          halves(c.heads, m.nope, m.rope)}});
  t.add(ours + "kv_down.weight", latent,
        {{theirs + "kv_a_proj_with_mqa.weight", latent, halves(1, m.kv_lora, m.rope)}});
  t.add(ours + "kv_norm.weight", theirs + "kv_a_layernorm.weight", {m.kv_lora});
  t.add(ours + "kv_up.weight", theirs + "kv_b_proj.weight",
        {c.heads * (m.nope + m.v_head), m.kv_lora});
  t.add(ours + "proj.weight", theirs + "o_proj.weight", {c.dim, c.heads * m.v_head});
}

void add_block(const GptConfig& c, bool experts, const std::string& ours, const std::string& theirs,
               hf::Tensors& t) {
  t.add(ours + "attn_norm.weight", theirs + "input_layernorm.weight", {c.dim});
  add_latent_attention(c, ours + "mla.", theirs + "self_attn.", t);
  t.add(ours + "mlp_norm.weight", theirs + "post_attention_layernorm.weight", {c.dim});
  if (!experts) return hf::add_mlp(t, ours + "mlp.", theirs + "mlp.", c.ffn_dim(), c.dim);
  hf::add_experts_of(c, hf::kExpertNames, ours + "moe.", theirs, t);
  t.add(ours + "moe.router.expert_bias", theirs + "mlp.gate.e_score_correction_bias",
        {c.moe.experts});
  if (c.moe.shared_ffn > 0)
    hf::add_mlp(t, ours + "moe.shared.mlp.", theirs + "mlp.shared_experts.", c.moe.shared_ffn,
                c.dim);
}

std::vector<HfTensor> deepseek_tensors(const GptConfig& c) {
  hf::Tensors t;
  hf::add_ends(c, t);
  for (std::int64_t i = 0; i < c.layers; ++i)
    add_block(c, c.has_experts(i), message("blocks.{}.", i), message("model.layers.{}.", i), t);
  for (std::int64_t d = 0; d < c.mtp.depths; ++d) {
    const std::string ours = message("mtp.{}.", d),
                      theirs = message("model.layers.{}.", c.layers + d);
    t.add(ours + "enorm.weight", theirs + "enorm.weight", {c.dim});
    t.add(ours + "hnorm.weight", theirs + "hnorm.weight", {c.dim});
    t.add(ours + "eh_proj.weight", theirs + "eh_proj.weight", {c.dim, 2 * c.dim});
    add_block(c, c.has_experts(c.layers - 1), ours + "block.", theirs, t);
    t.add(ours + "norm.weight", theirs + "shared_head.norm.weight", {c.dim});
    t.add_copy("embed.weight", theirs + "embed_tokens.weight", {c.vocab, c.dim});
    t.add_copy(c.tied() ? "embed.weight" : "head.weight", theirs + "shared_head.head.weight",
               {c.vocab, c.dim});
  }
  return t.take();
}

}  // namespace

HfFamily hf_deepseek_v3() {
  return {.type = "deepseek_v3",
          .architecture = "DeepseekV3ForCausalLM",
          .prefix = "model.",
          .read = read_deepseek,
          .write = write_deepseek,
          .tensors = deepseek_tensors,
          .ignored = {"layers.*.self_attn.rotary_emb.inv_freq"}};
}

}  // namespace weft::nn
