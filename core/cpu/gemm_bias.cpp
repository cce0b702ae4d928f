#include "weft/core/cpu/narrow_product.h"
#include "weft/core/kernels/gemm.h"

namespace weft {

bool fuses_bias(const Tensor& x, const Tensor& weight, const Tensor& out) {
  if (!x.is_contiguous() || !weight.is_contiguous() || !out.is_contiguous()) return false;
  const std::int64_t k = x.dim(1);
  if (x.device().is_gpu()) return k >= 1 && x.dtype() != DType::f64;  // cuBLASLt has no f64 version
  return x.dtype() == DType::f32 && k >= 1 && x.dim(0) >= cpu::kFewRows &&
         cpu::is_narrow(weight.dim(0), k);
}

std::int64_t fused_bias_scratch(const Tensor& x, const Tensor& weight) {
  return x.device().is_gpu() ? 0 : cpu::narrow_scratch(weight.dim(0), x.dim(1));
}

namespace cpu {

void gemm_bias(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& scratch,
               const Tensor& out) {
  narrow_product(x.data<float>(), weight.data<float>(), bias.data<float>(), scratch.data<float>(),
                 out.data<float>(), x.dim(0), weight.dim(0), x.dim(1),
                 [](std::int64_t, std::int64_t) {});
}

}  // namespace cpu
}  // namespace weft
