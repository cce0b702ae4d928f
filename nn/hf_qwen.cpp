#include "weft/nn/hf_decoder.h"

namespace weft::nn {
namespace {

constexpr std::int64_t kKvHeads = 32;  // what the classes take without the key

GptConfig read_qwen2(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {.kv_heads = kKvHeads});
  c.head_size = 0;  // the class knows no such key
  c.attn_bias = AttentionBias::qkv;
  c.window = hf::read_qwen_window(h, c.layers);
  return c;
}

void write_qwen2(const GptConfig& c, io::Json& out) {
  hf::write_decoder(c, out);
  hf::write_qwen_window(c, out);
}

GptConfig read_qwen3(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {.kv_heads = kKvHeads, .head_dim = 128});
  c.qk_norm = true;
  c.attn_bias = h.flag("attention_bias", false) ? AttentionBias::all : AttentionBias::none;
  c.window = hf::read_qwen_window(h, c.layers);
  return c;
}

void write_qwen3(const GptConfig& c, io::Json& out) {
  hf::write_decoder(c, out);
  hf::write_qwen_window(c, out);
  out.set("attention_bias", c.biases() == AttentionBias::all);
}

}  // namespace

HfFamily hf_qwen2() {
  return {.type = "qwen2",
          .architecture = "Qwen2ForCausalLM",
          .prefix = "model.",
          .read = read_qwen2,
          .write = write_qwen2,
          .tensors = hf::decoder_tensors,
          .ignored = {"layers.*.self_attn.rotary_emb.inv_freq"}};
}

HfFamily hf_qwen3() {
  return {.type = "qwen3",
          .architecture = "Qwen3ForCausalLM",
          .prefix = "model.",
          .read = read_qwen3,
          .write = write_qwen3,
          .tensors = hf::decoder_tensors};
}

}  // namespace weft::nn
