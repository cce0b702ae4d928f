#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// One product out (m, n) = op(a) (m, k) * op(b) (k, n), repeated over leading axes. A step of 0
/// repeats the operand along that axis.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;   ///< a is stored (k, m), b is stored (n, k)
  std::int64_t lda = 0, ldb = 0, ldc = 0;  ///< elements from one stored row to the next
  Shape batch, a_step, b_step, out_step;
  bool accumulate = false;  ///< add to what out holds
};

/// f32, f64: all alike. bf16: out is bf16 or f32, sums run in f32, `scratch` is f32 with
/// gemm_scratch() elements.
using GemmKernel = void(const Tensor& a, const Tensor& b, const GemmShape& shape,
                        const Tensor& scratch, const Tensor& out);

/// How many f32 elements of scratch a product needs; follows from shape and dtype alone.
std::int64_t gemm_scratch(const GemmShape& shape, DType dtype);

/// out (M, N) = x (M, K) weight (N, K)^T + bias (N), all f32 without gaps; scratch f32 with
/// fused_bias_scratch() elements.
using GemmBiasKernel = void(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& scratch, const Tensor& out);

/// The scratch of gemm_bias(), from shapes, layouts and dtypes alone; 0 where a separate pass for
/// the bias is the better way.
std::int64_t fused_bias_scratch(const Tensor& x, const Tensor& weight, const Tensor& out);

namespace cpu {
GemmKernel gemm;
GemmBiasKernel gemm_bias;
}  // namespace cpu
namespace cuda {
GemmKernel gemm;
GemmBiasKernel gemm_bias;
}  // namespace cuda

}  // namespace weft
