#pragma once
#include <functional>
#include <map>
#include <string>

#include "weft/core/tensor.h"

namespace weft {

/// A tensor that is made when it is read, so that a caller who handles one at a time needs memory
/// for one.
struct TensorSource {
  Shape shape;
  DType dtype;
  /// May return the very tensor that a later step changes.
  std::function<Tensor()> read;
};
using TensorSources = std::map<std::string, TensorSource>;

}  // namespace weft
