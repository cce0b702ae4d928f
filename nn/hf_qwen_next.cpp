#include "weft/core/error.h"
#include "weft/nn/hf_decoder.h"

namespace weft::nn {
namespace {

// Qwen3-Next: gated delta nets and attention with an output gate, zero-centred norms, experts.

constexpr const char* kDelta = "linear_attention";
constexpr const char* kFull = "full_attention";

std::string read_layers(const HfConfig& h, std::int64_t layers) {
  if (h.has("layer_types")) return hf::read_pattern(h, layers, {{kDelta, 'd'}, {kFull, 'a'}});
  const std::int64_t interval = h.size("full_attention_interval", 4);
  if (interval < 2 || interval > layers)
    h.refuse("full_attention_interval", message("2 to {}, the number of layers", layers));
  return std::string(static_cast<std::size_t>(interval - 1), 'd') + "a";
}

GptConfig read_qwen3_next(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {.kv_heads = 2, .head_dim = 256, .rotated = 0.25});
  c.attn_bias = h.flag("attention_bias", false) ? AttentionBias::all : AttentionBias::none;
  c.qk_norm = c.attn_gate = c.zero_centered_norm = true;
  c.pattern = read_layers(h, c.layers);
  c.delta = {.key_heads = h.size("linear_num_key_heads", 16),
             .value_heads = h.size("linear_num_value_heads", 32),
             .key_dim = h.size("linear_key_head_dim", 128),
             .value_dim = h.size("linear_value_head_dim", 128),
             .conv = h.size("linear_conv_kernel_dim", 4)};
  if (!c.has_delta()) h.refuse("layer_types", "lists with a linear_attention");
  hf::read_qwen_experts(h, c, {.experts = 512, .topk = 10, .width = 512, .normalised = true});
  hf::read_shared_expert(h, c, 512);
  return c;
}

void write_qwen3_next(const GptConfig& c, io::Json& out) {
  hf::write_decoder(c, out);
  hf::write_qwen_experts(c, out);
  out.set("shared_expert_intermediate_size", c.moe.shared_ffn);
  out.set("attention_bias", c.biases() == AttentionBias::all);
  io::Json types = io::Json::Array();
  for (std::int64_t i = 0; i < c.layers; ++i) types.push_back(c.is_delta(i) ? kDelta : kFull);
  out.set("layer_types", std::move(types));
  const GatedDeltaNetOptions d = c.delta_options();
  out.set("linear_num_key_heads", d.key_heads);
  out.set("linear_num_value_heads", d.value_heads);
  out.set("linear_key_head_dim", d.key_dim);
  out.set("linear_value_head_dim", d.value_dim);
  out.set("linear_conv_kernel_dim", d.conv);
}

// Row numbers that move the parts of each head, of these widths, behind the same part of the heads
// before it.
std::vector<std::int64_t> by_part(std::int64_t heads, const std::vector<std::int64_t>& widths) {
  std::vector<std::int64_t> rows;
  for (std::int64_t h = 0; h < heads; ++h) {
    std::int64_t first = 0;
    for (const std::int64_t w : widths) {
      for (std::int64_t i = 0; i < w; ++i) rows.push_back(first + h * w + i);
      first += heads * w;
    }
  }
  return rows;
}

void add_delta(const GptConfig& c, const std::string& ours, const std::string& theirs,
               hf::Tensors& t) {
  const GatedDeltaNetOptions d = c.delta_options();
  const std::int64_t sharers = d.value_heads / d.key_heads, channels = GatedDeltaNet::channels(d);
  const std::int64_t values = d.value_heads * d.value_dim, shared = sharers * d.value_dim;
  t.add(ours + "in_proj.weight", {GatedDeltaNet::inputs(d), c.dim},
        {{theirs + "in_proj_qkvz.weight",
          {channels + values, c.dim},
          by_part(d.key_heads, {d.key_dim, d.key_dim, shared, shared})},
         {theirs + "in_proj_ba.weight",
          {2 * d.value_heads, c.dim},
          by_part(d.key_heads, {sharers, sharers})}});
  t.add(ours + "conv", {channels, d.conv}, {{theirs + "conv1d.weight", {channels, 1, d.conv}}});
  t.add(ours + "a_log", theirs + "A_log", {d.value_heads});
  t.add(ours + "dt_bias", theirs + "dt_bias", {d.value_heads});
  t.add(ours + "norm.weight", theirs + "norm.weight", {d.value_dim});
  t.add(ours + "out_proj.weight", theirs + "out_proj.weight", {c.dim, values});
}

std::vector<HfTensor> qwen3_next_tensors(const GptConfig& c) {
  hf::Tensors t;
  hf::add_ends(c, t);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string ours = message("blocks.{}.", i), theirs = message("model.layers.{}.", i);
    if (c.is_delta(i))
      add_delta(c, ours + "delta.", theirs + "linear_attn.", t);
    else
      hf::add_attention(c, ours + "attn.", theirs + "self_attn.", t);
    hf::add_norms_and_mlp(c, i, t);
  }
  hf::add_experts(c, hf::kExpertNames, t);
  hf::add_shared_experts(c, t);
  return t.take();
}

}  // namespace

HfFamily hf_qwen3_next() {
  return {.type = "qwen3_next",
          .architecture = "Qwen3NextForCausalLM",
          .prefix = "model.",
          .read = read_qwen3_next,
          .write = write_qwen3_next,
          .tensors = qwen3_next_tensors,
          .ignored = {"mtp."}};
}

}  // namespace weft::nn
