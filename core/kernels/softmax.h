#pragma once
#include "weft/core/tensor.h"

namespace weft {

// Row-contiguous tensors of the same shape (..., C); softmax along the last axis.
using SoftmaxKernel = void(const Tensor& x, const Tensor& y);
using SoftmaxBwdKernel = void(const Tensor& y, const Tensor& dy, const Tensor& dx);

namespace cpu {
SoftmaxKernel softmax_fwd, log_softmax_fwd;
SoftmaxBwdKernel softmax_bwd, log_softmax_bwd;
}  // namespace cpu
namespace cuda {
SoftmaxKernel softmax_fwd, log_softmax_fwd;
SoftmaxBwdKernel softmax_bwd, log_softmax_bwd;
}  // namespace cuda

}  // namespace weft
