#include "weft/core/error.h"
#include "weft/nn/hf_decoder.h"

namespace weft::nn {
namespace {

void check_experts(const char* family, const GptConfig& c) {
  check(c.moe.experts > 0, "hf: {} needs a model with experts, got experts 0", family);
}

// Mixtral: experts in all layers, softmax over the chosen ones.

GptConfig read_mixtral(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {.kv_heads = 8, .eps = 1e-5, .rope_theta = 1e6});
  c.attn_bias = AttentionBias::none;
  c.window = h.size("sliding_window", 0);
  c.moe.experts = h.size("num_local_experts", 8);
  c.moe.router.route.topk = h.size("num_experts_per_tok", 2);
  c.moe.ffn = c.ffn;
  c.moe.router.jitter = h.number("router_jitter_noise", 0);
  return c;
}

void write_mixtral(const GptConfig& c, io::Json& out) {
  check_experts("mixtral", c);
  hf::write_decoder(c, out);
  out.set("intermediate_size", c.expert_ffn_dim());
  out.set("sliding_window", c.window > 0 ? io::Json(c.window) : io::Json());
  out.set("num_local_experts", c.moe.experts);
  out.set("num_experts_per_tok", c.moe.router.route.topk);
  out.set("router_jitter_noise", c.moe.router.jitter);
  out.set("router_aux_loss_coef", 0.001);
  out.set("output_router_logits", false);
}

std::vector<HfTensor> mixtral_tensors(const GptConfig& c) {
  hf::Tensors t;
  hf::add_decoder(c, t);
  hf::add_experts(c, {"block_sparse_moe.", "w1", "w3", "w2"}, t);
  return t.take();
}

// Qwen: MLPs in some layers, a softmax over all experts that may be renormalised over the chosen.

// The layers at the start that have an MLP. Throws Error if others have one.
std::int64_t dense_layers(const HfConfig& h, std::int64_t layers) {
  h.only("decoder_sparse_step", 1);
  if (!h.has("mlp_only_layers")) return 0;
  const io::Json& list = h.at("mlp_only_layers");
  check(list.is_array(), "{}: mlp_only_layers must be a list, got {}", h.where(), list.dump());
  const auto n = static_cast<std::int64_t>(list.items().size());
  for (std::int64_t i = 0; i < n; ++i)
    if (list.items()[static_cast<std::size_t>(i)].dump() != std::to_string(i) || n >= layers)
      h.refuse("mlp_only_layers", "0, 1, ... up to a layer before the last");
  return n;
}

}  // namespace

void hf::read_qwen_experts(const HfConfig& h, GptConfig& c, const ExpertDefaults& missing) {
  c.moe.experts = h.size("num_experts", h.size("num_local_experts", missing.experts));
  c.moe.router.route.topk = h.size("num_experts_per_tok", missing.topk);
  c.moe.router.route.pre_softmax = !h.flag("norm_topk_prob", missing.normalised);
  c.moe.ffn = h.size("moe_intermediate_size", missing.width);
  c.dense_layers = dense_layers(h, c.layers);
}

void hf::write_qwen_experts(const GptConfig& c, io::Json& out) {
  check_experts("a Qwen model of this class", c);
  out.set("num_experts", c.moe.experts);
  out.set("num_experts_per_tok", c.moe.router.route.topk);
  out.set("norm_topk_prob", !c.moe.router.route.pre_softmax);
  out.set("moe_intermediate_size", c.expert_ffn_dim());
  out.set("decoder_sparse_step", 1);
  io::Json dense = io::Json::Array();
  for (std::int64_t i = 0; i < c.dense_layers; ++i) dense.push_back(i);
  out.set("mlp_only_layers", std::move(dense));
  out.set("router_aux_loss_coef", 0.001);
  out.set("output_router_logits", false);
}

void hf::read_shared_expert(const HfConfig& h, GptConfig& c, std::int64_t missing_width) {
  c.moe.shared_ffn = h.size("shared_expert_intermediate_size", missing_width);
  c.moe.shared_gate = c.moe.shared_ffn > 0;
}

void hf::add_shared_experts(const GptConfig& c, Tensors& t) {
  for (std::int64_t i = 0; i < c.layers; ++i) {
    if (!c.has_experts(i) || c.moe.shared_ffn == 0) continue;
    const std::string ours = message("blocks.{}.moe.shared.", i),
                      theirs = message("model.layers.{}.mlp.shared_expert", i);
    add_mlp(t, ours + "mlp.", theirs + ".", c.moe.shared_ffn, c.dim);
    t.add(ours + "gate.weight", theirs + "_gate.weight", {1, c.dim});
  }
}

namespace {

GptConfig read_qwen2_moe(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {.kv_heads = 16});
  c.head_size = 0;  // the class knows no such key
  c.attn_bias = h.flag("qkv_bias", true) ? AttentionBias::qkv : AttentionBias::none;
  hf::read_qwen_experts(h, c, {.experts = 60, .topk = 4, .width = 1408});
  hf::read_shared_expert(h, c, 5632);
  if (h.flag("use_sliding_window", false) && hf::read_sliding_window(h) > 0 &&
      !h.has("layer_types"))
    h.refuse("use_sliding_window",
             "false, or true with layer_types, without which versions of transformers differ about "
             "the layers that have the window");
  hf::read_qwen_window(h, c);
  return c;
}

void write_qwen2_moe(const GptConfig& c, io::Json& out) {
  hf::write_decoder(c, out);
  hf::write_qwen_window(c, out);
  hf::write_qwen_experts(c, out);
  out.set("qkv_bias", c.biases() == AttentionBias::qkv);
  out.set("shared_expert_intermediate_size", c.moe.shared_ffn);
}

std::vector<HfTensor> qwen2_moe_tensors(const GptConfig& c) {
  hf::Tensors t;
  hf::add_decoder(c, t);
  hf::add_experts(c, hf::kExpertNames, t);
  hf::add_shared_experts(c, t);
  return t.take();
}

// The class has a window in all layers or in none, and reads neither max_window_layers nor
// layer_types. A list that says otherwise is refused: Weft wrote such folders for windows in some
// layers.
std::int64_t read_window_of_all(const HfConfig& h, std::int64_t layers) {
  if (!h.flag("use_sliding_window", false)) return 0;
  const std::int64_t window = hf::read_sliding_window(h);
  if (window > 0 && h.has("layer_types") &&
      hf::read_pattern(h, layers, {{"full_attention", 'a'}, {"sliding_attention", 'w'}}) != "w")
    h.refuse("layer_types", "sliding_attention in all layers");
  return window;
}

GptConfig read_qwen3_moe(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {.kv_heads = 4});
  c.qk_norm = true;
  c.attn_bias = h.flag("attention_bias", false) ? AttentionBias::all : AttentionBias::none;
  hf::read_qwen_experts(h, c, {.experts = 128, .topk = 8, .width = 768});
  c.window = read_window_of_all(h, c.layers);
  return c;
}

void write_qwen3_moe(const GptConfig& c, io::Json& out) {
  hf::write_decoder(c, out);
  const std::int64_t window = c.window_of(0);
  out.set("use_sliding_window", window > 0);
  out.set("sliding_window", window > 0 ? io::Json(window) : io::Json());
  hf::write_qwen_experts(c, out);
  out.set("attention_bias", c.biases() == AttentionBias::all);
}

std::vector<HfTensor> qwen3_moe_tensors(const GptConfig& c) {
  hf::Tensors t;
  hf::add_decoder(c, t);
  hf::add_experts(c, hf::kExpertNames, t);
  return t.take();
}

}  // namespace

HfFamily hf_mixtral() {
  return {.type = "mixtral",
          .architecture = "MixtralForCausalLM",
          .prefix = "model.",
          .read = read_mixtral,
          .write = write_mixtral,
          .tensors = mixtral_tensors};
}

HfFamily hf_qwen2_moe() {
  return {.type = "qwen2_moe",
          .architecture = "Qwen2MoeForCausalLM",
          .prefix = "model.",
          .read = read_qwen2_moe,
          .write = write_qwen2_moe,
          .tensors = qwen2_moe_tensors};
}

HfFamily hf_qwen3_moe() {
  return {.type = "qwen3_moe",
          .architecture = "Qwen3MoeForCausalLM",
          .prefix = "model.",
          .read = read_qwen3_moe,
          .write = write_qwen3_moe,
          .tensors = qwen3_moe_tensors};
}

}  // namespace weft::nn
