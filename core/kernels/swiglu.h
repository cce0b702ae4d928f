#pragma once
#include "weft/core/tensor.h"

namespace weft {

// Row-contiguous. Either gate and up have the shape of y (..., F), or up is null and gate is the
// packed (..., 2F) with rows [gate | up].
using SwigluKernel = void(const Tensor& gate, const Tensor& up, const Tensor& y);
/// dgate and dup have the layout of gate and up.
using SwigluBwdKernel = void(const Tensor& gate, const Tensor& up, const Tensor& dy,
                             const Tensor& dgate, const Tensor& dup);

namespace cpu {
SwigluKernel swiglu_fwd;
SwigluBwdKernel swiglu_bwd;
}  // namespace cpu
namespace cuda {
SwigluKernel swiglu_fwd;
SwigluBwdKernel swiglu_bwd;
}  // namespace cuda

}  // namespace weft
