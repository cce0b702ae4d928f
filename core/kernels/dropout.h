#pragma once
#include "weft/core/philox.h"
#include "weft/core/tensor.h"

namespace weft {

/// y[i] = random_bits(key, i) >> 8 < threshold ? 0 : x[i] * scale. x, y row-contiguous.
using DropoutKernel = void(const Tensor& x, const RandomKey& key, std::uint32_t threshold,
                           double scale, const Tensor& y);

namespace cpu {
DropoutKernel dropout;
}  // namespace cpu
namespace cuda {
DropoutKernel dropout;
}  // namespace cuda

}  // namespace weft
