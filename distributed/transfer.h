#pragma once
#include "weft/core/tensor.h"

namespace weft::distributed {

/// A tensor that goes to, or comes from, a rank of a group.
struct Transfer {
  Tensor tensor;
  int rank = -1;
};

}  // namespace weft::distributed
