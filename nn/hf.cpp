#include "weft/nn/hf.h"

#include <algorithm>
#include <cmath>

#include "weft/core/error.h"
#include "weft/io/json_fields.h"

namespace weft::nn {
namespace {

std::string type_of(const io::Json& config) {
  const io::Json* const type = config.find("model_type");
  check(type && type->is_string(), "config.json: must name its model_type");
  return type->as_string();
}

std::string known_types() {
  std::string list;
  for (const HfFamily& f : hf_families()) list += (list.empty() ? "" : ", ") + std::string(f.type);
  return list;
}

std::string where_of(const HfFamily& family) { return message("config.json: {}", family.type); }

// What a folder must give back. Which tokens a full expert drops matters in training only.
std::string comparable(const GptConfig& given) {
  GptConfig c = given.resolved();
  c.arch = {};  // what it stands for is filled in
  std::string letters;
  c.moe.router.capacity_factor = 0;
  bool has_window = false;
  for (std::int64_t i = 0; i < c.layers; ++i) {
    letters += given.mixer(i);
    has_window = has_window || given.window_of(i) > 0;
  }
  if (!has_window) c.window = 0;
  const bool is_attention =
      letters[0] != 'd' && letters.find_first_not_of(letters[0]) == letters.npos;
  c.pattern = is_attention ? "" : letters;  // w everywhere is a window everywhere
  bool has_mlp = false;
  for (std::int64_t i = 0; i < c.layers; ++i) has_mlp = has_mlp || !c.has_experts(i);
  if (!has_mlp) c.ffn = 0;
  return io::fields_to_json(c).dump();
}

// The folders of gpt2 have one form of block, those of all other families another. Throws Error
// that names the first setting with another value.
void check_form(const GptConfig& c, std::string_view type) {
  const bool gpt2 = type.empty() ? c.position_kind() == Positions::learned : type == "gpt2";
  const Activation act = c.mlp_activation();
  const auto need = [&](bool holds, const char* setting, const char* got) {
    check(holds, "hf: {} folders have {}; got {} {}",
          type.empty() ? (gpt2 ? "gpt2" : "llama") : std::string(type),
          gpt2 ? "learned positions, LayerNorm, and MLPs with biases and without a gate"
               : "rotary positions, RMSNorm, and SwiGLU without biases",
          setting, got);
  };
  need(c.position_kind() == (gpt2 ? Positions::learned : Positions::rope), "positions",
       word_of(kPositionsWords, c.position_kind()));
  need(c.norm_kind() == (gpt2 ? NormKind::layer : NormKind::rms), "norm",
       word_of(kNormWords, c.norm_kind()));
  need(gpt2 ? !is_gated(act) : act == Activation::swiglu, "activation", row_of(act).word);
  need(c.mlp_biases() == gpt2, "mlp_bias", c.mlp_biases() ? "on" : "off");
}

bool holds(const HfFamily& family, const GptConfig& c) {
  try {
    return comparable(read_hf_config(family, write_hf_config(family, c, "float32"))) ==
           comparable(c);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

const io::Json* HfConfig::find(const char* key) const {
  const io::Json* const found = json_->find(key);
  return found && !found->is_null() ? found : nullptr;
}

const io::Json& HfConfig::at(const char* key) const {
  const io::Json* const found = find(key);
  check(found != nullptr, "{}: {} is missing", where_, key);
  return *found;
}

std::int64_t HfConfig::size(const char* key) const {
  const io::Json& v = at(key);
  check(v.is_int() && v.as_int() >= 0 && static_cast<double>(v.as_int()) <= GptConfig::kMostSize,
        "{}: {} must be an integer in [0, {}], got {}", where_, key,
        static_cast<std::int64_t>(GptConfig::kMostSize), v.dump());
  return v.as_int();
}

std::int64_t HfConfig::size(const char* key, std::int64_t missing) const {
  return has(key) ? size(key) : missing;
}

double HfConfig::number(const char* key, double missing) const {
  if (!has(key)) return missing;
  const io::Json& v = at(key);
  check(v.is_number() && std::isfinite(v.as_double()), "{}: {} must be a number, got {}", where_,
        key, v.dump());
  return v.as_double();
}

bool HfConfig::flag(const char* key, bool missing) const {
  if (!has(key)) return missing;
  const io::Json& v = at(key);
  check(v.is_bool(), "{}: {} must be true or false, got {}", where_, key, v.dump());
  return v.as_bool();
}

std::string HfConfig::text(const char* key, const char* missing) const {
  if (!has(key)) return missing;
  const io::Json& v = at(key);
  check(v.is_string(), "{}: {} must be a string, got {}", where_, key, v.dump());
  return v.as_string();
}

void HfConfig::only(const char* key, const io::Json& supported) const {
  const io::Json* const v = find(key);
  if (!v || v->dump() == supported.dump()) return;
  if (v->is_number() && supported.is_number() && v->as_double() == supported.as_double()) return;
  refuse(key, supported.dump());
}

void HfConfig::refuse(const char* key, std::string_view supported) const {
  const io::Json* const v = find(key);
  throw Error(message("{}: {} {} is not supported; supported: {}", where_, key,
                      v ? v->dump() : "null", supported));
}

std::span<const HfFamily> hf_families() {
  static const HfFamily all[] = {hf_gpt2(),  hf_llama(),       hf_mistral(),   hf_qwen2(),
                                 hf_qwen3(), hf_mixtral(),     hf_qwen2_moe(), hf_qwen3_moe(),
                                 hf_olmoe(), hf_deepseek_v3(), hf_qwen3_next()};
  return all;
}

const HfFamily& hf_family(const io::Json& config) {
  const std::string type = type_of(config);
  for (const HfFamily& f : hf_families())
    if (type == f.type) return f;
  throw Error(message("config.json: model_type \"{}\" is not supported; supported: {}", type,
                      known_types()));
}

std::int64_t hf_fp8_block(const HfFamily& family, const io::Json& config) {
  const HfConfig h(config, where_of(family));
  constexpr const char* kKey = "quantization_config";
  if (!h.has(kKey)) return 0;
  const HfConfig q(h.at(kKey), h.where());
  const auto is = [&](const char* key, const char* word) { return q.text(key, word) == word; };
  const io::Json* const sizes = h.at(kKey).find("weight_block_size");
  const bool known = q.names("quant_method") && is("quant_method", "fp8") && is("fmt", "e4m3") &&
                     sizes && sizes->is_array() && sizes->items().size() == 2 &&
                     sizes->items()[0].is_int() && sizes->items()[0].as_int() >= 1 &&
                     static_cast<double>(sizes->items()[0].as_int()) <= GptConfig::kMostSize &&
                     sizes->items()[1].dump() == sizes->items()[0].dump();
  if (!known)
    h.refuse(kKey, "weights of f32, bf16 and f16, and fp8 in e4m3 with a square weight_block_size");
  return sizes->items()[0].as_int();
}

GptConfig read_hf_config(const HfFamily& family, const io::Json& config) {
  const HfConfig h(config, where_of(family));
  hf_fp8_block(family, config);
  GptConfig c = family.read(h);
  try {
    c.validate();
  } catch (const Error& e) {
    throw Error(message("{}: {}", h.where(), std::string(e.what())));
  }
  return c;
}

io::Json write_hf_config(const HfFamily& family, const GptConfig& config, const char* dtype) {
  io::Json out = io::Json::object();
  out.set("architectures", io::Json::Array{io::Json(family.architecture)});
  out.set("model_type", family.type);
  out.set("torch_dtype", dtype);
  out.set("dtype", dtype);  // its name in transformers 5
  family.write(config.resolved(), out);
  return out;
}

const HfFamily& hf_family_of(const GptConfig& config, std::string_view type) {
  check(config.moe_layers.empty(), "hf: a list of layers with experts cannot be written");
  // No setting of a file either, so that a comparison would not see it.
  check(config.moe.experts == 0 || !config.moe.router.bias,
        "hf: the router of no family has a bias; moe.router.bias must be false, got true");
  check(type.empty() || std::any_of(hf_families().begin(), hf_families().end(),
                                    [&](const HfFamily& f) { return type == f.type; }),
        "hf: the family must be one of {}, got {}", known_types(), std::string(type));
  check_form(config, type);
  for (const HfFamily& f : hf_families())
    if ((type.empty() || type == f.type) && holds(f, config)) return f;
  throw Error(message("hf: {} can hold this model; see docs/huggingface.md for what they hold",
                      type.empty() ? "no family of " + known_types()
                                   : "the family " + std::string(type) + " must be one that"));
}

}  // namespace weft::nn
