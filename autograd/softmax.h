#pragma once
#include "weft/core/tensor.h"

namespace weft {

Tensor softmax(const Tensor& x, int dim = -1);
Tensor log_softmax(const Tensor& x, int dim = -1);

}  // namespace weft
