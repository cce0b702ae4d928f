#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// One product out (m, n) = op(a) (m, k) * op(b) (k, n), repeated over leading axes. A step of 0
/// repeats the operand along that axis.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;   ///< a is stored (k, m), b is stored (n, k)
  std::int64_t lda = 0, ldb = 0, ldc = 0;  ///< distance between stored rows, in elements
  Shape batch, a_step, b_step, out_step;
  bool accumulate = false;  ///< add to the old value of out
};

/// f32, f64: the same dtype for all. bf16: out is bf16 or f32, sums are f32. `scratch` is f32 with
/// gemm_scratch() elements; null for none. An f32 product that
/// has it adds the sums over two halves of k.
using GemmKernel = void(const Tensor& a, const Tensor& b, const GemmShape& shape,
                        const Tensor& scratch, const Tensor& out);

/// Number of f32 scratch elements of a product; depends on shape, dtype and kind of device, on a
/// CPU also on the processor and WEFT_GEMM.
std::int64_t gemm_scratch(const GemmShape& shape, DType dtype, Device device);

/// out (M, N) = x (M, K) weight (N, K)^T + bias (N), all without gaps.
using GemmBiasKernel = void(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& out);

/// True when gemm_bias() supports these operands and beats a separate pass for the bias. Depends on
/// shapes, layouts, dtypes and kind of device, on a CPU also on the processor and WEFT_GEMM.
bool fuses_bias(const Tensor& x, const Tensor& weight, const Tensor& out);

namespace cpu {
GemmKernel gemm;
GemmBiasKernel gemm_bias;
}  // namespace cpu
namespace cuda {
GemmKernel gemm;
GemmBiasKernel gemm_bias;
}  // namespace cuda

}  // namespace weft
