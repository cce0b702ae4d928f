#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/io/json.h"
#include "weft/nn/gpt_config.h"

namespace weft::nn {

/// Reads a Hugging Face config.json. Every error names the family, the key and the value.
class HfConfig {
 public:
  /// `where` starts every message: "config.json: llama".
  HfConfig(const io::Json& json, std::string where) : json_(&json), where_(std::move(where)) {}

  /// Whether the key is there with a value other than null.
  bool has(const char* key) const { return find(key) != nullptr; }
  /// Whether the key is there, also as null.
  bool names(const char* key) const { return json_->find(key) != nullptr; }
  /// A count from 0 to GptConfig::kMostSize. The first form throws Error without the key; `missing`
  /// is what the family's class takes then.
  std::int64_t size(const char* key) const;
  std::int64_t size(const char* key, std::int64_t missing) const;
  double number(const char* key, double missing) const;
  bool flag(const char* key, bool missing) const;
  std::string text(const char* key, const char* missing) const;
  /// The object or list of a key that is there.
  const io::Json& at(const char* key) const;
  /// Throws Error unless the key is missing, null or has this value.
  void only(const char* key, const io::Json& supported) const;
  /// Throws Error: the key's value is not supported, and what is.
  [[noreturn]] void refuse(const char* key, std::string_view supported) const;
  const std::string& where() const { return where_; }

 private:
  const io::Json* find(const char* key) const;
  const io::Json* json_;
  std::string where_;
};

/// A tensor of a Hugging Face folder, and the place of its values in a parameter of Gpt.
struct HfTensor {
  std::string name;         ///< in the folder
  Shape shape;              ///< in the folder
  std::string parameter;    ///< dotted name in Gpt
  Shape whole;              ///< its shape
  std::int64_t first = 0;   ///< how many of its elements come before the tensor's
  bool transposed = false;  ///< stored as (in, out)
  /// Its row i is row rows[i] of the place; empty: in the same order.
  std::vector<std::int64_t> rows = {};
  /// Written for programs that want it; another tensor holds the same values, which are read.
  bool copy = false;
};

/// A family of Hugging Face models that Gpt can hold.
struct HfFamily {
  const char* type;          ///< "model_type" in config.json
  const char* architecture;  ///< the class in "architectures"
  const char* prefix;        ///< of most names; some files leave it out
  /// Throws Error on a value that Gpt does not support.
  GptConfig (*read)(const HfConfig& config);
  /// Adds the family's keys. What the family cannot hold is lost; see hf_family_of().
  void (*write)(const GptConfig& config, io::Json& out);
  std::vector<HfTensor> (*tensors)(const GptConfig& config);
  /// Names that old files hold beside the weights; without the prefix. A trailing * is any block.
  std::vector<std::string> ignored = {};
};

std::span<const HfFamily> hf_families();

/// The family that a config.json names. Throws Error that lists the supported ones.
const HfFamily& hf_family(const io::Json& config);
/// The configuration in it, validated.
GptConfig read_hf_config(const HfFamily& family, const io::Json& config);
/// The rows and columns of a block of FP8 weights that share a factor, by its quantization_config;
/// 0: it has none. Throws Error on any other quantization.
std::int64_t hf_fp8_block(const HfFamily& family, const io::Json& config);
/// The config.json of a model of a family, as transformers 4 writes it; `dtype` is torch's word.
io::Json write_hf_config(const HfFamily& family, const GptConfig& config, const char* dtype);
/// The first family whose config.json reads back as the same configuration, up to settings of
/// training. `type`, if not empty, is the only one to try. Throws Error if there is none.
const HfFamily& hf_family_of(const GptConfig& config, std::string_view type = {});

// One table each, in hf_<family>.cpp.
HfFamily hf_gpt2();
HfFamily hf_llama();
HfFamily hf_mistral();
HfFamily hf_qwen2();
HfFamily hf_qwen3();
HfFamily hf_mixtral();
HfFamily hf_qwen2_moe();
HfFamily hf_qwen3_moe();
HfFamily hf_olmoe();
HfFamily hf_deepseek_v3();
HfFamily hf_qwen3_next();

}  // namespace weft::nn
