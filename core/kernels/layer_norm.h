#pragma once
#include "weft/core/kernels/norm_chunks.h"
#include "weft/core/tensor.h"

namespace weft {

// R rows of C elements, row-contiguous. "real" is f64 for f64 tensors, else f32. A null residual,
// weight, bias or dsum is absent.

/// sum (R, C) = x + residual when there is a residual; y (R, C); mean, rstd (R) real.
using LayerNormFwdKernel = void(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                const Tensor& bias, double eps, const Tensor& sum, const Tensor& y,
                                const Tensor& mean, const Tensor& rstd);
/// x is what was normalised. dx (R, C) gets dsum added. dweight (C) and dbias (C) may be null;
/// partials is real (how many of the two there are, norm_chunks(R), C), null when none.
using LayerNormBwdKernel = void(const Tensor& x, const Tensor& dy, const Tensor& weight,
                                const Tensor& mean, const Tensor& rstd, const Tensor& dsum,
                                const Tensor& partials, const Tensor& dx, const Tensor& dweight,
                                const Tensor& dbias);

namespace cpu {
LayerNormFwdKernel layer_norm_fwd;
LayerNormBwdKernel layer_norm_bwd;
}  // namespace cpu
namespace cuda {
LayerNormFwdKernel layer_norm_fwd;
LayerNormBwdKernel layer_norm_bwd;
}  // namespace cuda

}  // namespace weft
