#include "weft/nn/hf_decoder.h"

namespace weft::nn {
namespace {

GptConfig read_mistral(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {.kv_heads = 8});
  c.attn_bias = AttentionBias::none;
  c.window = hf::read_sliding_window(h);
  return c;
}

void write_mistral(const GptConfig& c, io::Json& out) {
  hf::write_decoder(c, out);
  out.set("sliding_window", c.window > 0 ? io::Json(c.window) : io::Json());
}

}  // namespace

HfFamily hf_mistral() {
  return {.type = "mistral",
          .architecture = "MistralForCausalLM",
          .prefix = "model.",
          .read = read_mistral,
          .write = write_mistral,
          .tensors = hf::decoder_tensors,
          .ignored = {"layers.*.self_attn.rotary_emb.inv_freq"}};
}

}  // namespace weft::nn
