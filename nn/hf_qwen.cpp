#include <algorithm>

#include "weft/core/error.h"
#include "weft/nn/hf_decoder.h"

namespace weft::nn {

std::string hf::read_pattern(const HfConfig& h, std::int64_t layers,
                             std::initializer_list<LayerType> types) {
  const io::Json& list = h.at("layer_types");
  check(list.is_array() && std::ssize(list.items()) == layers,
        "{}: layer_types must be a list of {} words, got {}", h.where(), layers, list.dump());
  std::string words, letters;
  for (const LayerType& type : types) words += (words.empty() ? "" : ", ") + std::string(type.word);
  for (const io::Json& item : list.items()) {
    const auto* const found = std::find_if(types.begin(), types.end(), [&](const LayerType& t) {
      return item.is_string() && item.as_string() == t.word;
    });
    if (found == types.end()) h.refuse("layer_types", "lists of " + words);
    letters += found->letter;
  }
  std::size_t period = 1;
  while (letters.compare(period, letters.npos, letters, 0, letters.size() - period) != 0) ++period;
  return letters.substr(0, period);
}

std::int64_t hf::read_sliding_window(const HfConfig& h) {
  return h.names("sliding_window") ? h.size("sliding_window", 0) : 4096;
}

void hf::read_qwen_window(const HfConfig& h, GptConfig& c) {
  if (!h.flag("use_sliding_window", false)) return;
  const std::int64_t window = read_sliding_window(h);
  const std::int64_t full =
      window > 0 ? std::min(h.size("max_window_layers", 28), c.layers) : c.layers;
  std::string pattern = std::string(static_cast<std::size_t>(full), 'a') +
                        std::string(static_cast<std::size_t>(c.layers - full), 'w');
  if (h.has("layer_types"))
    pattern = read_pattern(h, c.layers, {{"full_attention", 'a'}, {"sliding_attention", 'w'}});
  if (pattern.find('w') == pattern.npos) return;
  if (window == 0)
    h.refuse("sliding_window", "a number of tokens where layer_types has sliding_attention");
  c.window = window;
  if (pattern.find('a') != pattern.npos) c.pattern = pattern;
}

void hf::write_qwen_window(const GptConfig& c, io::Json& out) {
  out.set("use_sliding_window", c.window > 0);
  out.set("sliding_window", c.window > 0 ? io::Json(c.window) : io::Json());
  std::int64_t full = 0;
  while (full < c.layers && c.window_of(full) == 0) ++full;
  out.set("max_window_layers", full);
  io::Json types = io::Json::Array();
  for (std::int64_t i = 0; i < c.layers; ++i)
    types.push_back(c.window_of(i) > 0 ? "sliding_attention" : "full_attention");
  out.set("layer_types", std::move(types));
}

namespace {

constexpr std::int64_t kKvHeads = 32;  // what the classes take without the key

GptConfig read_qwen2(const HfConfig& h) {
  GptConfig c = hf::read_decoder(h, {.kv_heads = kKvHeads});
  c.head_size = 0;  // the class knows no such key
  c.attn_bias = AttentionBias::qkv;
  hf::read_qwen_window(h, c);
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
  hf::read_qwen_window(h, c);
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
