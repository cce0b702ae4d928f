#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// source (any strides, any dtype) -> out (any strides, any dtype), same shape. Values are
/// converted with one rounding; a float becomes an integer by truncation, a bool by != 0.
using CopyKernel = void(const Tensor& source, const Tensor& out);
/// out (any strides) = value.
using FillKernel = void(const Tensor& out, double value);

namespace cpu {
CopyKernel copy;
FillKernel fill;
}  // namespace cpu
namespace cuda {
CopyKernel copy;
FillKernel fill;
}  // namespace cuda

}  // namespace weft
