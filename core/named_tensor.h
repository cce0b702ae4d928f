#pragma once
#include <map>
#include <string>
#include <vector>

#include "weft/core/tensor.h"

namespace weft {

/// A parameter, buffer or state with its dotted name ("blocks.3.attn.qkv.weight").
struct NamedTensor {
  std::string name;
  Tensor tensor;
};
using NamedTensors = std::vector<NamedTensor>;

/// The tensors of a model or an optimizer, by name.
using StateDict = std::map<std::string, Tensor>;

}  // namespace weft
