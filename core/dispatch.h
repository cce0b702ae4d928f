#pragma once
#include <atomic>

#include "weft/core/cuda.h"
#include "weft/core/kernel_timer.h"
#include "weft/core/tensor.h"

#ifndef WEFT_WITH_CUDA
#define WEFT_WITH_CUDA 0
#endif

namespace weft {

inline constexpr bool kWithCuda = WEFT_WITH_CUDA;

namespace detail {

/// Hook that the meta device calls instead of a kernel. `signature` is that of a function template
/// whose argument is the skipped kernel: "... [with auto Kernel = weft::cpu::softmax_fwd]".
/// Null: no call.
using SkippedKernel = void(const char* signature);
extern std::atomic<SkippedKernel*> on_skipped_kernel;

template <auto Kernel>
const char* kernel_signature() {
  return __PRETTY_FUNCTION__;
}

template <auto Kernel>
[[gnu::noinline, gnu::cold]] void skip_kernel() {
  if (SkippedKernel* const call = on_skipped_kernel.load(std::memory_order_relaxed))
    call(kernel_signature<Kernel>());
}

template <auto Cpu, auto Cuda, class First, class... Args>
inline void run_kernel(Device device, const First& first, const Args&... args) {
  if (device.is_meta()) [[unlikely]]
    return skip_kernel<Cpu>();
  if constexpr (kWithCuda) {
    if (device.is_cuda()) {
      cuda::detail::use_device(device.index);
      return Cuda(first, args...);
    }
  }
  Cpu(first, args...);
}

template <auto Cpu, auto Cuda, class First, class... Args>
[[gnu::noinline, gnu::cold]] void run_timed(Device device, const First& first,
                                            const Args&... args) {
  KernelTimer timer(kernel_signature<Cpu>(), device,
                    operand_bytes(first) + (0.0 + ... + operand_bytes(args)));
  if (timer.wants_operands()) {
    std::string names;
    add_operand(names, first);
    (add_operand(names, args), ...);
    timer.set_operands(names);
  }
  run_kernel<Cpu, Cuda>(device, first, args...);
  timer.done();
}

}  // namespace detail

/// Calls the CPU or the CUDA kernel, by the device of the first argument: a tensor, or the struct
/// of a kernel with many. On the meta device the kernel is skipped. In a CPU build the CUDA name is
/// never referenced, so nothing needs a stub.
template <auto Cpu, auto Cuda, class First, class... Args>
inline void dispatch(const First& first, const Args&... args) {
  const Device device = first.device();
  if (detail::profiling()) [[unlikely]]
    return detail::run_timed<Cpu, Cuda>(device, first, args...);
  detail::run_kernel<Cpu, Cuda>(device, first, args...);
}

}  // namespace weft
