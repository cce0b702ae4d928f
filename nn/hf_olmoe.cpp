#include "weft/nn/hf_decoder.h"

namespace weft::nn {
namespace {

// OLMoE: experts in all layers, norms over all heads of queries and of keys.

GptConfig read_olmoe(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {.eps = 1e-5});
  c.head_size = 0;  // the class knows no such key
  c.attn_bias = h.flag("attention_bias", false) ? AttentionBias::all : AttentionBias::none;
  c.qk_norm = c.qk_norm_joint = true;
  c.clip_qkv = h.number("clip_qkv", 0);
  c.moe.experts = h.size("num_experts", 64);
  c.moe.router.route.topk = h.size("num_experts_per_tok", 8);
  c.moe.router.route.pre_softmax = !h.flag("norm_topk_prob", false);
  c.moe.ffn = c.ffn;
  return c;
}

void write_olmoe(const GptConfig& c, io::Json& out) {
  hf::write_decoder(c, out);
  out.set("intermediate_size", c.expert_ffn_dim());
  out.set("attention_bias", c.biases() == AttentionBias::all);
  out.set("clip_qkv", c.clip_qkv > 0 ? io::Json(c.clip_qkv) : io::Json());
  out.set("num_experts", c.moe.experts);
  out.set("num_experts_per_tok", c.moe.router.route.topk);
  out.set("norm_topk_prob", !c.moe.router.route.pre_softmax);
  out.set("router_aux_loss_coef", 0.01);
  out.set("output_router_logits", false);
}

std::vector<HfTensor> olmoe_tensors(const GptConfig& c) {
  hf::Tensors t;
  hf::add_decoder(c, t);
  hf::add_experts(c, hf::kExpertNames, t);
  return t.take();
}

}  // namespace

HfFamily hf_olmoe() {
  return {.type = "olmoe",
          .architecture = "OlmoeForCausalLM",
          .prefix = "model.",
          .read = read_olmoe,
          .write = write_olmoe,
          .tensors = olmoe_tensors};
}

}  // namespace weft::nn
