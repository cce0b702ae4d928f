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
  };
  /// A parameter that consists of these tensors, one after the other.
  void add(const std::string& parameter, const Shape& whole, const std::vector<Part>& parts);
  void add(const std::string& parameter, const std::string& name, const Shape& shape) {
    add(parameter, shape, {{name, shape}});
  }
  /// A matrix of shape (out, in) that the folder has as (in, out).
  void add_transposed(const std::string& parameter, const std::string& name, std::int64_t out,
                      std::int64_t in);
  std::vector<HfTensor> take() { return std::move(all_); }

 private:
  std::vector<HfTensor> all_;
};

/// What a family's class takes for keys that are missing.
struct Defaults {
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  std::int64_t head_dim = 0;  ///< 0: dim / heads
  double eps = 1e-6, rope_theta = 10000;
};

/// The keys that Llama and its descendants share: sizes, norms, rope, tied weights.
GptConfig read_decoder(const HfConfig& h, const Defaults& missing);
void write_decoder(const GptConfig& c, io::Json& out);

/// Their tensors outside of the blocks, their attention and norms, and the MLPs of blocks without
/// experts.
void add_decoder(const GptConfig& c, Tensors& t);
/// The gate, up and down projections of an MLP.
void add_mlp(Tensors& t, const std::string& ours, const std::string& theirs, std::int64_t ffn,
             std::int64_t dim);
/// The names of a block's experts below it.
struct ExpertNames {
  const char* block;  ///< "mlp."
  const char *gate, *up, *down;
};
/// The routers and experts of the blocks that have them.
void add_experts(const GptConfig& c, const ExpertNames& names, Tensors& t);
/// add_decoder() alone.
std::vector<HfTensor> decoder_tensors(const GptConfig& c);

/// use_sliding_window, sliding_window, max_window_layers and layer_types of Qwen.
std::int64_t read_qwen_window(const HfConfig& h, std::int64_t layers);
void write_qwen_window(const GptConfig& c, io::Json& out);

}  // namespace weft::nn::hf
