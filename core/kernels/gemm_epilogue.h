#pragma once
#include "weft/core/kernels/gemm.h"

namespace weft {

// Products fused with the operations before or after them in an MLP: one pass over a hidden layer
// instead of two or three. Matrices are row-contiguous, with at least one element in every axis.

/// hidden (M, F) = x (M, K) weight (F, K)^T + bias (F), act (M, F) = gelu(hidden), in the tanh or
/// the erf form. A null hidden is not stored.
using GemmGeluKernel = void(const Tensor& x, const Tensor& weight, const Tensor& bias, bool tanh,
                            const Tensor& hidden, const Tensor& act);
struct GemmGeluBwdIn {
  const Tensor& dy;      ///< (M, N)
  const Tensor& weight;  ///< (N, F)
  const Tensor& hidden;  ///< (M, F)
  bool tanh;
  Device device() const { return dy.device(); }
};
struct GemmGeluBwdOut {
  const Tensor& dhidden;  ///< (M, F) = dy weight * gelu'(hidden)
  /// (F) = the sum of the rows of dhidden, in the order of reduce(), in its dtype or on the CPU
  /// f32; or null
  const Tensor& dbias;
  const Tensor& act;      ///< gelu(hidden), which may be hidden itself; or null
  const Tensor& scratch;  ///< as for gemm()
  const Tensor& partial;  ///< scratch: f64, epilogue_partial() elements
};
using GemmGeluBwdKernel = void(const GemmGeluBwdIn& in, const GemmGeluBwdOut& out);
/// out (N, K) = dy (M, N)^T x (M, K), added to out when `accumulate`, and dbias (N) = the sum of
/// the rows of dy. out and dbias have dy's dtype; on a GPU both may be f32 for bf16.
using GemmBiasGradKernel = void(const Tensor& dy, const Tensor& x, bool accumulate,
                                const Tensor& scratch, const Tensor& partial, const Tensor& out,
                                const Tensor& dbias);

/// True when gemm_gelu() supports these operands and beats gemm_bias() with a separate pass.
/// Depends on shapes, layouts, dtypes and kind of device.
bool fuses_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, bool tanh);

/// The shapes of the two products of the backward kernels, for gemm_scratch().
GemmShape gelu_bwd_shape(const Tensor& dy, const Tensor& weight);
GemmShape bias_grad_shape(const Tensor& dy, const Tensor& x, bool accumulate);
/// Size of `partial` for the sum over the rows of (rows, cols).
std::int64_t epilogue_partial(std::int64_t rows, std::int64_t cols, Device device);

namespace cpu {
GemmGeluKernel gemm_gelu;
GemmGeluBwdKernel gemm_gelu_bwd;
GemmBiasGradKernel gemm_bias_grad;
}  // namespace cpu
namespace cuda {
GemmGeluKernel gemm_gelu;
GemmGeluBwdKernel gemm_gelu_bwd;
GemmBiasGradKernel gemm_bias_grad;
}  // namespace cuda

}  // namespace weft
