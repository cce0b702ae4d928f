#pragma once
#include <map>
#include <string>
#include <vector>

#include "weft/nn/lora.h"

namespace weft::nn {

/// The adapters of a model, apart from it.
struct LoraWeights {
  LoraOptions options;  ///< of all of them; the targets give just these places
  /// The a and b of each, by their names in the model: "blocks.0.attn.qkv.lora.q.a".
  StateDict tensors;
};

/// Adds adapters to the weights that they belong to, one tensor at a time.
class LoraMerger {
 public:
  /// Throws Error (Fault::user) unless every adapter has a place in the model, which may be on the
  /// meta device, with the shapes of that place, and each weight is of one layer.
  LoraMerger(const Module& model, LoraWeights weights);
  /// Adds what belongs to the parameter's elements from `first` on, which `values` are: one or more
  /// whole rows.
  void add_to(const std::string& parameter, std::int64_t first, const Tensor& values) const;

 private:
  struct Product {
    std::int64_t first, rows, in;
    Tensor a, b;
  };
  std::map<std::string, std::vector<Product>> products_;  // by weight
  double scale_;
};

}  // namespace weft::nn
