#pragma once
#include "weft/cuda/device.h"

namespace weft::test {

/// Launches the kernel and waits for it. On the emulator it may read and write host memory too.
template <class... P, class... A>
void run_kernel(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared, A&&... args) {
  cuda::launch(kernel, grid, block, shared, std::forward<A>(args)...);
  cuda::synchronize();
}

}  // namespace weft::test
