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
                            {.type = "olmoe", .architecture = "olmoe", .untied = true}};

/// The end of a Hugging Face name below its block, and that of GGUF.
struct Name {
  const char *theirs, *ours;
};
constexpr Name kBlockNames[] = {{"input_layernorm", "attn_norm"},
                                {"post_attention_layernorm", "ffn_norm"},
                                {"self_attn.q_proj", "attn_q"},
                                {"self_attn.k_proj", "attn_k"},
                                {"self_attn.v_proj", "attn_v"},
                                {"self_attn.o_proj", "attn_output"},
                                {"self_attn.q_norm", "attn_q_norm"},
                                {"self_attn.k_norm", "attn_k_norm"},
                                {"mlp.gate_proj", "ffn_gate"},
                                {"mlp.up_proj", "ffn_up"},
                                {"mlp.down_proj", "ffn_down"},
                                {"mlp.gate", "ffn_gate_inp"},
                                {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
                                {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
                                {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
                                {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
                                {"block_sparse_moe.gate", "ffn_gate_inp"},
                                {"ln_1", "attn_norm"},
                                {"ln_2", "ffn_norm"},
                                {"attn.c_attn", "attn_qkv"},
                                {"attn.c_proj", "attn_output"},
                                {"mlp.c_fc", "ffn_up"},
                                {"mlp.c_proj", "ffn_down"}};
constexpr Name kExpertNames[] = {{"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"},
                                 {"down_proj", "ffn_down_exps"}, {"w1", "ffn_gate_exps"},
                                 {"w3", "ffn_up_exps"},          {"w2", "ffn_down_exps"}};
constexpr Name kEndNames[] = {{"model.embed_tokens", "token_embd"},
                              {"model.norm", "output_norm"},
                              {"lm_head", "output"},
                              {"transformer.wte", "token_embd"},
                              {"transformer.wpe", "position_embd"},
                              {"transformer.ln_f", "output_norm"}};

template <std::size_t N>
const char* find(const Name (&names)[N], std::string_view theirs) {
  const auto* const found =
      std::find_if(names, names + N, [&](const Name& n) { return theirs == n.theirs; });
  return found == names + N ? nullptr : found->ours;
}

// "blk.3.attn_q.weight" for "model.layers.3.self_attn.q_proj.weight"; one name for all experts.
std::string gguf_name(const std::string& theirs) {
  const std::size_t dot = theirs.rfind('.');
  const std::string stem = theirs.substr(0, dot), end = theirs.substr(dot);
  if (const char* const found = find(kEndNames, stem)) return found + end;
  for (const std::string_view prefix : {"model.layers.", "transformer.h."}) {
    if (!stem.starts_with(prefix)) continue;
    const std::size_t point = stem.find('.', prefix.size());
    const std::string block = stem.substr(prefix.size(), point - prefix.size());
    const std::string_view rest = std::string_view(stem).substr(point + 1);
    constexpr std::string_view kExperts = ".experts.";
    const std::size_t experts = rest.find(kExperts);
    const char* const found =
        experts == rest.npos
            ? find(kBlockNames, rest)
            : find(kExpertNames, rest.substr(rest.find('.', experts + kExperts.size()) + 1));
    if (found) return "blk." + block + "." + found + end;
  }
  throw Error(message("gguf: the tensor {} has no name in llama.cpp", theirs));
}

const Known& known(std::string_view type) {
  const auto* const found = std::find_if(std::begin(kKnown), std::end(kKnown),
                                         [&](const Known& k) { return k.type == type; });
  std::string list;
  for (const Known& k : kKnown) list += (list.empty() ? "" : ", ") + std::string(k.type);
  check(found != std::end(kKnown), "gguf: the family {} is not supported; supported: {}", type,
        list);
  return *found;
}

/// Refuses what llama.cpp would compute otherwise without a word.
void check_computed(const Known& k, const GptConfig& c) {
  const auto need = [&](bool holds, const char* rule) {
    check(holds, "gguf: llama.cpp's {} {}", k.architecture, rule);
  };
  need(c.mtp.depths == 0, "has no MTP layers here; convert a model without them");
  if (c.arch == Arch::gpt2) return need(c.gelu == Gelu::tanh, "has GELU by tanh only");
  need(c.clip_qkv == 0, "does not clamp queries, keys and values (clip_qkv)");
  need(k.biased_output || c.biases() != AttentionBias::all,
       "has no bias on the output of attention (attention_bias)");
  need(!k.untied || !c.tied(), "needs a head of its own: the embedding is tied to it");
  const RopeScaling& s = c.rope_scaling;
  using Kind = RopeScaling::Kind;
  need(s.kind != Kind::llama3 || k.llama3_rope, "has no rope scaling of type llama3");
  need(s.kind != Kind::yarn || (s.attention == 0 && s.mscale == 0 && s.mscale_all == 0 &&
                                s.beta_fast == 32 && s.beta_slow == 1),
       "has yarn with beta_fast 32, beta_slow 1 and its own attention_factor only");
  if (c.moe.experts == 0) return;
  const bool is_llama = std::string_view(k.type) == "mixtral";
  const bool normalises = is_llama || std::string_view(k.type) == "qwen3_moe";
  for (std::int64_t i = 0; i < c.layers; ++i)
    need(c.has_experts(i), "has experts in all layers: this model has MLPs in some");
  need(c.moe.router.route.pre_softmax != normalises,
       normalises ? "divides the chosen probabilities by their sum (norm_topk_prob true)"
                  : "does not divide the chosen probabilities by their sum (norm_topk_prob false)");
  const bool is_olmoe = std::string_view(k.type) == "olmoe";
  need(!is_olmoe || c.kv_head_count() == c.heads, "needs as many heads of keys as of queries");
  need(std::string_view(k.type) != "qwen2_moe" || c.moe.shared_ffn > 0, "needs a shared expert");
}

// llama.cpp sees all tokens before; within the window that is the same.
std::int64_t context_of(const GptConfig& c) {
  std::int64_t most = c.seq;
  for (std::int64_t i = 0; i < c.layers; ++i)
    if (c.window_of(i) > 0) most = std::min(most, c.window_of(i));
  return most;
}

void add_rope(const GptConfig& c, const std::string& arch, GgufModel& out) {
  const auto put = [&](const char* key, io::GgufValue v) {
    out.metadata.emplace_back(arch + ".rope." + key, std::move(v));
  };
  put("dimension_count", static_cast<std::uint32_t>(c.rotated()));
  put("freq_base", static_cast<float>(c.rope_theta));
  const RopeScaling& s = c.rope_scaling;
  using Kind = RopeScaling::Kind;
  if (s.kind == Kind::none) return;
  if (s.kind == Kind::llama3) {
    const std::vector<double> plain = rope_frequencies(c.rotated(), c.rope_theta),
                              scaled = rope_frequencies(c.rotated(), c.rope_theta, s);
    for (std::size_t i = 0; i < plain.size(); ++i)
      out.rope_factors.push_back(static_cast<float>(plain[i] / scaled[i]));
    return;
  }
  put("scaling.type", s.kind == Kind::linear ? "linear" : "yarn");
  put("scaling.factor", static_cast<float>(s.factor));
  if (s.kind == Kind::yarn)
    put("scaling.original_context_length", static_cast<std::uint32_t>(s.original));
}

void add_metadata(const GptConfig& c, GgufModel& out) {
  const std::string& arch = out.architecture;
  const auto size = [&](const char* key, std::int64_t v) {
    out.metadata.emplace_back(arch + "." + key, static_cast<std::uint32_t>(v));
  };
  const bool is_gpt2 = c.arch == Arch::gpt2;
  size("vocab_size", c.vocab);
  size("context_length", context_of(c));
  size("embedding_length", c.dim);
  size("block_count", c.layers);
  // Of the experts where llama.cpp has no key for them.
  const bool of_experts = c.moe.experts > 0 && (arch == "llama" || arch == "olmoe");
  size("feed_forward_length", of_experts ? c.expert_ffn_dim() : c.ffn_dim());
  size("attention.head_count", c.heads);
  out.metadata.emplace_back(
      arch + (is_gpt2 ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon"),
      static_cast<float>(c.norm_eps));
  if (!is_gpt2) {
    size("attention.head_count_kv", c.kv_head_count());
    size("attention.key_length", c.head_dim());
    size("attention.value_length", c.head_dim());
    add_rope(c, arch, out);
  }
  if (c.moe.experts == 0) return;
  size("expert_count", c.moe.experts);
  size("expert_used_count", c.moe.router.route.topk);
  if (!of_experts) size("expert_feed_forward_length", c.expert_ffn_dim());
  if (c.moe.shared_ffn > 0) size("expert_shared_feed_forward_length", c.moe.shared_ffn);
}

bool is_narrow(const std::string& name, const Shape& shape) {
  return shape.size() > 1 && name.find("_norm.") == name.npos &&
         name.find("ffn_gate_inp") == name.npos && !name.starts_with("position_embd");
}

}  // namespace

GgufModel gguf_model(const GptConfig& config, std::string_view type) {
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
    place.narrow = is_narrow(name, place.shape);
    out.tensors.push_back(std::move(place));
  }
  return out;
}

}  // namespace weft::nn
