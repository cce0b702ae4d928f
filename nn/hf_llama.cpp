#include "weft/nn/hf_decoder.h"

namespace weft::nn {
namespace {

GptConfig read_llama(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {});
  h.only("mlp_bias", false);
  c.attn_bias = h.flag("attention_bias", false) ? AttentionBias::all : AttentionBias::none;
  return c;
}

void write_llama(const GptConfig& c, io::Json& out) {
  hf::write_decoder(c, out);
  out.set("attention_bias", c.biases() == AttentionBias::all);
  out.set("mlp_bias", false);
}

}  // namespace

HfFamily hf_llama() {
  return {.type = "llama",
          .architecture = "LlamaForCausalLM",
          .prefix = "model.",
          .read = read_llama,
          .write = write_llama,
          .tensors = hf::decoder_tensors,
          .ignored = {"layers.*.self_attn.rotary_emb.inv_freq"}};
}

}  // namespace weft::nn
