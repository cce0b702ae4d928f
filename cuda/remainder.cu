// Merges f32 numbers from their two halves and splits them; the optimizer calls this when its state
// is read or written.
#include "weft/core/kernels/remainder.h"
#include "weft/cuda/device.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    remainder_merge_kernel(std::int64_t n, const bf16* upper, const std::int16_t* remainder,
                           float* out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) out[i] = merge_float(upper[i], remainder[i]);
}

__global__ void __launch_bounds__(kThreads)
    remainder_split_kernel(std::int64_t n, const float* x, bf16* upper, std::int16_t* remainder) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const SplitFloat s = split_float(x[i]);
  upper[i] = s.upper;
  remainder[i] = s.remainder;
}

}  // namespace

void merge_remainder(const Tensor& upper, const Tensor& remainder, const Tensor& out) {
  const std::int64_t n = upper.numel();
  launch(remainder_merge_kernel, grid_of(blocks_for(n, kThreads)), kThreads, 0, n,
         upper.data<bf16>(), static_cast<const std::int16_t*>(remainder.raw()), out.data<float>());
}

void split_remainder(const Tensor& x, const Tensor& upper, const Tensor& remainder) {
  const std::int64_t n = x.numel();
  launch(remainder_split_kernel, grid_of(blocks_for(n, kThreads)), kThreads, 0, n, x.data<float>(),
         upper.data<bf16>(), static_cast<std::int16_t*>(remainder.raw()));
}

}  // namespace weft::cuda
