#pragma once
#include "weft/core/kernels/norm_chunks.h"
#include "weft/core/tensor.h"

namespace weft {

// As in layer_norm.h, without mean and bias.
using RmsNormFwdKernel = void(const Tensor& x, const Tensor& residual, const Tensor& weight,
                              double eps, const Tensor& sum, const Tensor& y, const Tensor& rstd);
using RmsNormBwdKernel = void(const Tensor& x, const Tensor& dy, const Tensor& weight,
                              const Tensor& rstd, const Tensor& dsum, const Tensor& partials,
                              const Tensor& dx, const Tensor& dweight);

namespace cpu {
RmsNormFwdKernel rms_norm_fwd;
RmsNormBwdKernel rms_norm_bwd;
}  // namespace cpu
namespace cuda {
RmsNormFwdKernel rms_norm_fwd;
RmsNormBwdKernel rms_norm_bwd;
}  // namespace cuda

}  // namespace weft
