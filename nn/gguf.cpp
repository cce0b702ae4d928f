#include "weft/nn/gguf.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "weft/core/error.h"
#include "weft/nn/hf.h"

namespace weft::nn {
namespace {

/// A family, its name in llama.cpp, and what that program's code assumes.
struct Known {
  const char* type;
  const char* architecture;
  bool interleaved = false;  ///< rope turns pairs of neighbours in place of the two halves
  bool llama3_rope = false;  ///< it reads rope_freqs
  bool biased_output = false;
  bool untied = false;  ///< it needs a head of its own
};
constexpr Known kKnown[] = {{.type = "gpt2", .architecture = "gpt2", .biased_output = true},
                            {"llama", "llama", true, true, true},
                            {"mistral", "llama", true, true, true},
                            {"mixtral", "llama", true, true, true},
                            {.type = "qwen2", .architecture = "qwen2"},
                            {.type = "qwen3", .architecture = "qwen3"},
                            {.type = "qwen2_moe", .architecture = "qwen2moe", .untied = true},
                            {.type = "qwen3_moe", .architecture = "qwen3moe"},
                            {.type = "olmoe", .architecture = "olmoe", .untied = true},
                            {.type = "deepseek_v3", .architecture = "deepseek2"}};

const Known& known(std::string_view type) {
  const auto* const found = std::find_if(std::begin(kKnown), std::end(kKnown),
                                         [&](const Known& k) { return k.type == type; });
  std::string list;
  for (const Known& k : kKnown) list += (list.empty() ? "" : ", ") + std::string(k.type);
  check(found != std::end(kKnown), "gguf: the family {} is not supported; supported: {}", type,
        list);
  return *found;
}

bool is_gpt2(const Known& k) { return k.type == std::string_view("gpt2"); }

void check_experts(const Known& k, const GptConfig& c) {
  const auto need = [&](bool holds, const char* rule) {
    check(holds, "gguf: llama.cpp's {} {}", k.architecture, rule);
  };
  const std::string_view type = k.type;
  if (type == "deepseek_v3") return need(c.moe.shared_ffn > 0, "needs a shared expert");
  const bool normalises = type == "mixtral" || type == "qwen3_moe";
  for (std::int64_t i = 0; i < c.layers; ++i)
    need(c.has_experts(i), "has experts in all layers: this model has MLPs in some");
  need(c.moe.router.route.pre_softmax != normalises,
       normalises ? "divides the chosen probabilities by their sum (norm_topk_prob true)"
                  : "does not divide the chosen probabilities by their sum (norm_topk_prob false)");
  need(type != "olmoe" || c.kv_head_count() == c.heads,
       "needs as many heads of keys as of queries");
  need(type != "qwen2_moe" || c.moe.shared_ffn > 0, "needs a shared expert");
}

/// Refuses what llama.cpp would compute otherwise without a word.
void check_computed(const Known& k, const GptConfig& c) {
  const auto need = [&](bool holds, const char* rule) {
    check(holds, "gguf: llama.cpp's {} {}", k.architecture, rule);
  };
  if (is_gpt2(k)) return need(c.activation == Activation::gelu_tanh, "has GELU by tanh only");
  need(c.clip_qkv == 0, "does not clamp queries, keys and values (clip_qkv)");
  need(k.biased_output || c.biases() != AttentionBias::all,
       "has no bias on the output of attention (attention_bias)");
  need(!k.untied || !c.tied(), "needs a head of its own: the embedding is tied to it");
  const RopeScaling& s = c.rope_scaling;
  using Kind = RopeScaling::Kind;
  need(s.kind != Kind::llama3 || k.llama3_rope, "has no rope scaling of type llama3");
  const bool usual = s.attention == 0 && s.beta_fast == 32 && s.beta_slow == 1;
  const bool latent = c.attention == AttentionKind::mla;
  // Of latent attention it takes both factors for equal.
  const bool factors = latent ? s.mscale == s.mscale_all : s.mscale == 0 && s.mscale_all == 0;
  need(s.kind != Kind::yarn || (usual && factors),
       latent ? "has yarn with beta_fast 32, beta_slow 1, and mscale equal to mscale_all_dim only"
              : "has yarn with beta_fast 32, beta_slow 1 and its own attention_factor only");
  need(!latent || c.mla.q_lora > 0, "needs queries of low rank (q_lora_rank)");
  need(s.kind != Kind::yarn || !latent || s.mscale != 0, "has yarn with mscale_all_dim only");
  if (c.moe.experts > 0) check_experts(k, c);
}

// llama.cpp sees all tokens before; within the window that is the same.
std::int64_t context_of(const GptConfig& c) {
  std::int64_t most = c.seq;
  for (std::int64_t i = 0; i < c.layers; ++i)
    if (c.window_of(i) > 0) most = std::min(most, c.window_of(i));
  return most;
}

void add_rope(const GptConfig& c, std::int64_t rotated, GgufModel& out) {
  const std::string& arch = out.architecture;
  const auto put = [&](const char* key, io::GgufValue v) {
    out.metadata.emplace_back(arch + ".rope." + key, std::move(v));
  };
  put("dimension_count", static_cast<std::uint32_t>(rotated));
  put("freq_base", static_cast<float>(c.rope_theta));
  const RopeScaling& s = c.rope_scaling;
  using Kind = RopeScaling::Kind;
  if (s.kind == Kind::none) return;
  if (s.kind == Kind::llama3) {
    const std::vector<double> plain = rope_frequencies(rotated, c.rope_theta),
                              scaled = rope_frequencies(rotated, c.rope_theta, s);
    for (std::size_t i = 0; i < plain.size(); ++i)
      out.rope_factors.push_back(static_cast<float>(plain[i] / scaled[i]));
    return;
  }
  put("scaling.type", s.kind == Kind::linear ? "linear" : "yarn");
  put("scaling.factor", static_cast<float>(s.factor));
  if (s.kind == Kind::yarn)
    put("scaling.original_context_length", static_cast<std::uint32_t>(s.original));
  if (s.mscale_all != 0) put("scaling.yarn_log_multiplier", static_cast<float>(0.1 * s.mscale_all));
}

// Latent attention as that of one head of keys, whose values are the latent itself.
void add_latent_metadata(const GptConfig& c, GgufModel& out) {
  const auto size = [&](const char* key, std::int64_t v) {
    out.metadata.emplace_back(out.architecture + "." + key, static_cast<std::uint32_t>(v));
  };
  const MlaOptions m = c.mla_options();
  const RouterOptions& route = c.moe.router.route;
  size("attention.head_count_kv", 1);
  size("attention.key_length", m.kv_lora + m.rope);
  size("attention.value_length", m.kv_lora);
  size("attention.key_length_mla", m.nope + m.rope);
  size("attention.value_length_mla", m.v_head);
  if (m.q_lora > 0) size("attention.q_lora_rank", m.q_lora);
  size("attention.kv_lora_rank", m.kv_lora);
  add_rope(c, m.rope, out);
  size("leading_dense_block_count", c.dense_layers);
  size("expert_shared_count", c.moe.shared_ffn / c.expert_ffn_dim());
  size("expert_gating_func", 2);  // sigmoid
  out.metadata.emplace_back(out.architecture + ".expert_weights_scale",
                            static_cast<float>(route.scaling));
  out.metadata.emplace_back(out.architecture + ".expert_weights_norm", route.normalise);
  if (route.groups <= 1) return;
  size("expert_group_count", route.groups);
  size("expert_group_used_count", route.group_topk);
}

void add_metadata(const GptConfig& c, GgufModel& out) {
  const std::string& arch = out.architecture;
  const auto size = [&](const char* key, std::int64_t v) {
    out.metadata.emplace_back(arch + "." + key, static_cast<std::uint32_t>(v));
  };
  const bool layer_norm = c.norm_kind() == NormKind::layer;
  size("vocab_size", c.vocab);
  size("context_length", context_of(c));
  size("embedding_length", c.dim);
  size("block_count", c.layers);
  // Of the experts where llama.cpp has no key for them.
  const bool of_experts = c.moe.experts > 0 && (arch == "llama" || arch == "olmoe");
  size("feed_forward_length", of_experts ? c.expert_ffn_dim() : c.ffn_dim());
  size("attention.head_count", c.heads);
  out.metadata.emplace_back(
      arch + (layer_norm ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon"),
      static_cast<float>(c.norm_eps));
  const bool latent = c.attention == AttentionKind::mla;
  if (latent) {
    add_latent_metadata(c, out);
  } else if (c.position_kind() == Positions::rope) {
    size("attention.head_count_kv", c.kv_head_count());
    size("attention.key_length", c.head_dim());
    size("attention.value_length", c.head_dim());
    add_rope(c, c.rotated(), out);
  }
  if (c.moe.experts == 0) return;
  size("expert_count", c.moe.experts);
  size("expert_used_count", c.moe.router.route.topk);
  if (!of_experts) size("expert_feed_forward_length", c.expert_ffn_dim());
  if (c.moe.shared_ffn > 0 && !latent) size("expert_shared_feed_forward_length", c.moe.shared_ffn);
}

bool is_narrow(const std::string& name, const Shape& shape) {
  return shape.size() > 1 && name.find("_norm.") == name.npos &&
         name.find("ffn_gate_inp") == name.npos && !name.starts_with("position_embd");
}

// The up-projection of the latent, head by head keys and then values: two tensors, of which that of
// keys maps the other way.
void add_latent_parts(const GptConfig& c, const GgufPlace& both, GgufModel& out) {
  const MlaOptions m = c.mla_options();
  const std::string block = both.name.substr(0, both.name.find("attn_kv_b"));
  GgufPlace keys{block + "attn_k_b.weight", {c.heads, m.kv_lora, m.nope}, {}},
      values{block + "attn_v_b.weight", {c.heads, m.v_head, m.kv_lora}, {}};
  keys.transposed = true;
  for (std::int64_t h = 0; h < c.heads; ++h) {
    GgufPlace::Part part = both.parts[0];
    part.first = h * (m.nope + m.v_head) * m.kv_lora;
    keys.parts.push_back(part);
    part.first += m.nope * m.kv_lora;
    values.parts.push_back(part);
  }
  out.tensors.push_back(std::move(keys));
  out.tensors.push_back(std::move(values));
}

}  // namespace

GgufModel gguf_model(const GptConfig& given, std::string_view type) {
  GptConfig config = given;
  config.mtp = {};
  if (!type.empty()) known(type);  // the clearer error
  const HfFamily& family = hf_family_of(config, type);
  const Known& k = known(family.type);
  const GptConfig c = config.resolved();
  check_computed(k, c);
  GgufModel out;
  out.architecture = k.architecture;
  add_metadata(c, out);
  std::map<std::string, std::size_t> index;
  for (const HfTensor& t : family.tensors(c)) {
    const std::string name = gguf_name(t.name);
    const GgufPlace::Part part{t.parameter, t.whole, t.first};
    const auto [at, is_new] = index.emplace(name, out.tensors.size());
    if (!is_new) {
      GgufPlace& stacked = out.tensors[at->second];
      ++stacked.shape[0];
      stacked.parts.push_back(part);
      continue;
    }
    GgufPlace place{name, t.transposed ? t.whole : t.shape, {part}};
    if (name.ends_with("_inp_shexp.weight")) place.shape = {c.dim};
    if (name.find("_exps.") != name.npos) place.shape.insert(0, 1);
    const bool turned = name.find(".attn_q.") != name.npos || name.find(".attn_k.") != name.npos;
    if (k.interleaved && turned) place.head = c.head_dim();
    place.rows = t.rows;
    place.narrow = is_narrow(name, place.shape);
    if (name.ends_with(".attn_kv_b.weight")) {
      add_latent_parts(c, place, out);
      continue;
    }
    out.tensors.push_back(std::move(place));
  }
  return out;
}

}  // namespace weft::nn
