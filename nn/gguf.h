#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/io/gguf.h"
#include "weft/nn/gpt_config.h"

namespace weft::nn {

/// A tensor of a GGUF file, and where its values are in parameters of Gpt.
struct GgufPlace {
  struct Part {
    std::string parameter;   ///< dotted name in Gpt
    Shape whole;             ///< its shape
    std::int64_t first = 0;  ///< how many of its elements come before the part's
  };
  std::string name;
  Shape shape;              ///< rows first; of all parts, one after the other
  std::vector<Part> parts;  ///< of equal size: one, or one for each expert
  /// Row i is row rows[i] of its only part; empty: in the same order.
  std::vector<std::int64_t> rows = {};
  bool transposed = false;  ///< the parts are stored as (columns, rows)
  /// Rows of a head, which stand in another order: of its two halves in turn; 0: in the same order.
  std::int64_t head = 0;
  /// The type may be narrower than f32: llama.cpp wants norms, biases and routers in f32.
  bool narrow = true;
};

/// A model as llama.cpp describes it.
struct GgufModel {
  std::string architecture;
  io::GgufMetadata metadata;  ///< "llama.context_length" and the like
  std::vector<GgufPlace> tensors;
  std::vector<float> rope_factors;  ///< of the tensor rope_freqs.weight; empty: there is none
};

/// The name of a tensor in GGUF files by that in Hugging Face folders; that of all experts' for a
/// tensor of an expert. Throws Error if it has none.
std::string gguf_name(const std::string& theirs);

/// The description of a model without its MTP layers, of the Hugging Face family `type`; empty: the
/// first that holds it. Throws Error on a family that llama.cpp does not know or Weft cannot write,
/// with the list of those that it can, and on what llama.cpp computes otherwise. Source: src/models
/// and conversion of github.com/ggml-org/llama.cpp.
GgufModel gguf_model(const GptConfig& config, std::string_view type = {});

}  // namespace weft::nn
