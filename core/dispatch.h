#pragma once
#include "weft/core/cuda.h"
#include "weft/core/tensor.h"

#ifndef WEFT_WITH_CUDA
#define WEFT_WITH_CUDA 0
#endif

namespace weft {

inline constexpr bool kWithCuda = WEFT_WITH_CUDA;

/// Calls the CPU or the CUDA kernel, by the device of the first tensor; on the meta device the
/// kernel is skipped. In a CPU build the CUDA name is never referenced, so nothing needs a stub.
template <auto Cpu, auto Cuda, class... Args>
inline void dispatch(const Tensor& first, const Args&... args) {
  const Device device = first.device();
  if (device.is_meta()) return;
  if constexpr (kWithCuda) {
    if (device.is_cuda()) {
      cuda::detail::use_device(device.index);
      return Cuda(first, args...);
    }
  }
  Cpu(first, args...);
}

}  // namespace weft
