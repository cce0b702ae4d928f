#include "weft/core/cpu/packed_product.h"
#include "weft/core/kernels/gemm.h"

namespace weft {
namespace {

// x (M, K) weight (N, K)^T.
template <class T>
cpu::Product<T> linear_product(const Tensor& x, const Tensor& weight, const Tensor& out) {
  const std::int64_t n = weight.dim(0), k = x.dim(1);
  return {x.data<T>(), weight.data<T>(), out.data<T>(), x.dim(0), n, k, k, k, n, false, true,
          false};
}

}  // namespace

bool fuses_bias(const Tensor& x, const Tensor& weight, const Tensor& out) {
  if (!x.is_contiguous() || !weight.is_contiguous() || !out.is_contiguous()) return false;
  const bool f64 = x.dtype() == DType::f64;
  if (x.dim(1) == 0) return false;
  if (x.device().is_gpu()) return !f64;  // cuBLASLt has no f64 version
  const std::int64_t m = x.dim(0), n = weight.dim(0), k = x.dim(1);
  if (f64) return cpu::engine_for<double>(m, n, k) == cpu::ProductEngine::packed;
  if (x.dtype() != DType::f32 || cpu::is_small_product(m, n, k)) return false;
  const cpu::Product<float> sizes{nullptr, nullptr, nullptr, m, n, k, k, k, n, false, true, false};
  return !sizes.has_dot_products() && cpu::gemm_engine() == cpu::ProductEngine::packed;
}

namespace cpu {

void gemm_bias(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out) {
  const auto run = [&]<class T>() {
    parallel_product(linear_product<T>(x, weight, out), bias.data<T>(), [](auto...) {});
  };
  x.dtype() == DType::f64 ? run.operator()<double>() : run.operator()<float>();
}

}  // namespace cpu
}  // namespace weft
