#include <algorithm>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/gemm.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// Rows of x are narrow enough to stay in the first cache with a panel of the weight. There the bias
// is free in the sums' registers, where a pass of its own costs 3 to 7 % of the product; for wider
// rows the library's blocking wins it back.
constexpr std::int64_t kNarrow = 256, kFewRows = 64;

constexpr std::int64_t kPanel = 32, kRows = 64;

std::int64_t panels_of(std::int64_t n) { return (n + kPanel - 1) / kPanel; }

}  // namespace

bool fuses_bias(const Tensor& x, const Tensor& weight, const Tensor& out) {
  if (!x.is_contiguous() || !weight.is_contiguous() || !out.is_contiguous()) return false;
  const std::int64_t k = x.dim(1);
  if (x.device().is_gpu()) return k >= 1 && x.dtype() != DType::f64;  // cuBLASLt has none in f64
  return x.dtype() == DType::f32 && k >= 1 && k <= kNarrow && x.dim(0) >= kFewRows;
}

std::int64_t fused_bias_scratch(const Tensor& x, const Tensor& weight) {
  return x.device().is_gpu() ? 0 : panels_of(weight.dim(0)) * kPanel * x.dim(1);
}

namespace cpu {

void gemm_bias(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& scratch,
               const Tensor& out) {
  const std::int64_t m = x.dim(0), k = x.dim(1), n = weight.dim(0), panels = panels_of(n);
  const AttentionKernels& f = simd().attention;
  const float *px = x.data<float>(), *pw = weight.data<float>(), *pb = bias.data<float>();
  float *packed = scratch.data<float>(), *py = out.data<float>();
  // The weight's transpose in panels: 32 columns of out, one row for each k.
  parallel_for(panels, kPanel * k, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p)
      f.transpose(pw + p * kPanel * k, k, std::min(kPanel, n - p * kPanel), k, 1.0f,
                  packed + p * kPanel * k, kPanel);
  });
  parallel_for((m + kRows - 1) / kRows, kRows * n * k / 8,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin * kRows; i < std::min(m, end * kRows); i += kRows)
                   for (std::int64_t j = 0; j < n; j += kPanel)
                     f.product({px + i * k, k, 1, packed + j * k, kPanel, py + i * n + j, n,
                                std::min(kRows, m - i), std::min(kPanel, n - j), k, pb + j, 0});
               });
}

}  // namespace cpu
}  // namespace weft
