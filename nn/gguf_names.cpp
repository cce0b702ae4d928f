#include <algorithm>

#include "weft/core/error.h"
#include "weft/nn/gguf.h"

namespace weft::nn {
namespace {

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
                                {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
                                {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
                                {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
                                {"self_attn.q_a_proj", "attn_q_a"},
                                {"self_attn.q_a_layernorm", "attn_q_a_norm"},
                                {"self_attn.q_b_proj", "attn_q_b"},
                                {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                                {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
                                {"self_attn.kv_b_proj", "attn_kv_b"},
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
std::string name_of(const std::string& theirs) {
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

}  // namespace

std::string gguf_name(const std::string& theirs) {
  constexpr std::string_view kBias = "mlp.gate.e_score_correction_bias";
  if (!theirs.ends_with(kBias)) return name_of(theirs);
  const std::string router = theirs.substr(0, theirs.size() - kBias.size()) + "mlp.gate.weight";
  const std::string name = name_of(router);
  return name.substr(0, name.find("ffn_gate_inp")) + "exp_probs_b.bias";
}

}  // namespace weft::nn
