#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// (..., M, K) x (..., K, N) -> (..., M, N); leading axes broadcast; 1-D operands as in NumPy.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x (..., K) times weight (N, K) transposed, plus bias (N) when given: (..., N).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace weft
