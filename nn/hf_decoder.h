#pragma once
#include "weft/nn/hf.h"

namespace weft::nn::hf {

// What the tables of the families share.

/// Collects the tensors of a model.
class Tensors {
 public:
  struct Part {
    std::string name;
    Shape shape;
    std::vector<std::int64_t> rows = {};  ///< see HfTensor
  };
  /// A parameter that consists of these tensors, one after the other.
  void add(const std::string& parameter, const Shape& whole, const std::vector<Part>& parts);
  void add(const std::string& parameter, const std::string& name, const Shape& shape) {
    add(parameter, shape, {{name, shape}});
  }
  /// A matrix of shape (out, in) that the folder has as (in, out).
  void add_transposed(const std::string& parameter, const std::string& name, std::int64_t out,
                      std::int64_t in);
  /// A tensor that is written beside another one with the same values, and never read.
  void add_copy(const std::string& parameter, const std::string& name, const Shape& shape);
  std::vector<HfTensor> take() { return std::move(all_); }

 private:
  std::vector<HfTensor> all_;
};

/// What a family's class takes for keys that are missing.
struct Defaults {
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  std::int64_t head_dim = 0;  ///< 0: dim / heads
  double eps = 1e-6, rope_theta = 10000;
  /// The rotated share of a head; 0: all, and the class knows no such key.
  double rotated = 0;
};

/// The keys that Llama and its descendants share: sizes, norms, rope, tied weights.
GptConfig read_decoder(const HfConfig& h, const Defaults& missing);
void write_decoder(const GptConfig& c, io::Json& out);

/// Their tensors outside of the blocks.
void add_ends(const GptConfig& c, Tensors& t);
/// The projections and norms of an attention layer.
void add_attention(const GptConfig& c, const std::string& ours, const std::string& theirs,
                   Tensors& t);
/// The norms of a block, and its MLP unless it has experts.
void add_norms_and_mlp(const GptConfig& c, std::int64_t block, Tensors& t);
/// add_ends(), their attention and norms, and the MLPs of blocks without experts.
void add_decoder(const GptConfig& c, Tensors& t);
/// The gate, up and down projections of an MLP.
void add_mlp(Tensors& t, const std::string& ours, const std::string& theirs, std::int64_t ffn,
             std::int64_t dim);
/// The names of a block's experts below it.
struct ExpertNames {
  const char* block;  ///< "mlp."
  const char *gate, *up, *down;
};
/// As most families call them.
inline constexpr ExpertNames kExpertNames{"mlp.", "gate_proj", "up_proj", "down_proj"};
/// The routers and experts of the blocks that have them.
void add_experts(const GptConfig& c, const ExpertNames& names, Tensors& t);
/// Those of one block; `theirs` is the block's prefix.
void add_experts_of(const GptConfig& c, const ExpertNames& names, const std::string& ours,
                    const std::string& theirs, Tensors& t);
/// add_decoder() alone.
std::vector<HfTensor> decoder_tensors(const GptConfig& c);

/// A word of layer_types and its letter in GptConfig::pattern.
struct LayerType {
  const char* word;
  char letter;
};
/// The letters of layer_types, as the shortest pattern that repeats.
std::string read_pattern(const HfConfig& h, std::int64_t layers,
                         std::initializer_list<LayerType> types);

/// sliding_window of Mistral and Qwen. Null means no window, 0 here; without the key the classes
/// have one.
std::int64_t read_sliding_window(const HfConfig& h);
/// use_sliding_window, sliding_window, max_window_layers and layer_types of Qwen.
void read_qwen_window(const HfConfig& h, GptConfig& c);
void write_qwen_window(const GptConfig& c, io::Json& out);

/// What a class of Qwen with experts takes for keys that are missing.
struct ExpertDefaults {
  std::int64_t experts, topk, width;
  bool normalised = false;
};
/// Experts, their router, and MLPs in the layers at the start.
void read_qwen_experts(const HfConfig& h, GptConfig& c, const ExpertDefaults& missing);
void write_qwen_experts(const GptConfig& c, io::Json& out);
/// An expert for all tokens, with its gate.
void read_shared_expert(const HfConfig& h, GptConfig& c, std::int64_t missing_width);
void add_shared_experts(const GptConfig& c, Tensors& t);

}  // namespace weft::nn::hf
