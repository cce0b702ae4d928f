#pragma once
#include "weft/core/kernels/gemm.h"

namespace weft {

// Products fused with the adjacent ops of an MLP: one pass over a hidden layer instead of two or
// three. Matrices are row-contiguous, with at least one element in every axis.

/// hidden (M, F) = x (M, K) weight (F, K)^T + bias (F), act (M, F) = gelu(hidden), in the tanh or
/// the erf form. A null hidden is not stored. scratch as for gemm_bias().
using GemmGeluKernel = void(const Tensor& x, const Tensor& weight, const Tensor& bias, bool tanh,
                            const Tensor& scratch, const Tensor& hidden, const Tensor& act);
/// dhidden (M, F) = dy (M, N) weight (N, F) * gelu'(hidden), and dbias (F) = the sum of its rows,
/// unless null. act: null, or receives gelu(hidden); it may be hidden itself. scratch as for
/// gemm(); partial: f64 with epilogue_partial() elements. Row sums use the order of reduce().
using GemmGeluBwdKernel = void(const Tensor& dy, const Tensor& weight, const Tensor& hidden,
                               bool tanh, const Tensor& scratch, const Tensor& partial,
                               const Tensor& dhidden, const Tensor& dbias, const Tensor& act);
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
