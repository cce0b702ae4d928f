#pragma once
#include "weft/autograd/matmul.h"
#include "weft/autograd/parameter_gradient.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/gemm.h"
#include "weft/core/kernels/elementwise.h"
#include "weft/core/kernels/gemm_epilogue.h"

namespace weft::detail {

/// (..., C) -> (rows, C).
inline Tensor as_matrix(const Tensor& t) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < t.ndim(); ++i) rows *= t.dim(i);
  return reshape(t, {rows, t.dim(-1)});
}

inline Tensor f32_scratch(std::int64_t n, Device device) {
  return n ? Tensor::empty({n}, DType::f32, device) : Tensor();
}

/// Adds the sum of the rows of dy (M, N) to the gradient of a bias, which is input `bias`.
inline void add_bias_gradient(Backward& b, int bias, const Tensor& dy) {
  if (!b.needs(bias)) return;
  if (b.sum_dtype(bias, dy.dtype()) == dy.dtype()) return b.add(bias, weft::sum(dy, {0}));
  ParameterGradient dbias(b, bias, {dy.dim(1)}, dy);
  sum_rows(contiguous(dy), dbias.to);
  dbias.give(b);
}

/// Adds dy (M, N)^T x (M, K) to the gradient of a weight, which is input `weight`.
inline void add_weight_gradient(Backward& b, int weight, const Tensor& dy, const Tensor& x) {
  if (const GradientSum sum = b.accumulator(weight, {dy.dim(1), x.dim(1)}, dy.dtype(), true);
      sum.to.defined())
    gemm(transposed(dy), x, sum.to, sum.adds);
  else if (b.needs(weight))
    b.add(weight, matmul(transpose(dy, 0, 1), x));
}

/// Computes both gradients in one GPU matrix product, which also sums the rows of dy.
inline void add_weight_and_bias(Backward& b, int weight, int bias, const Tensor& dy,
                                const Tensor& x) {
  const GradientSum sum = b.accumulator(weight, {dy.dim(1), x.dim(1)}, dy.dtype(), true);
  const Tensor out =
      sum.to.defined() ? sum.to : Tensor::empty({dy.dim(1), x.dim(1)}, dy.dtype(), dy.device());
  ParameterGradient dbias;
  const bool alike = b.sum_dtype(bias, dy.dtype()) == out.dtype();
  if (alike) dbias = {b, bias, {dy.dim(1)}, dy};
  const Tensor rows = alike ? dbias.to : Tensor::empty({dy.dim(1)}, out.dtype(), dy.device());
  const bool accumulate = sum.adds;
  const Tensor scratch = f32_scratch(
      gemm_scratch(bias_grad_shape(dy, x, accumulate), dy.dtype(), dy.device()), dy.device());
  const Tensor partial =
      Tensor::empty({epilogue_partial(dy.dim(0), dy.dim(1), dy.device())}, DType::f64, dy.device());
  detail::count_product(out.numel(), dy.dim(0));
  if (accumulate) detail::count_update(out);
  dispatch<cpu::gemm_bias_grad, cuda::gemm_bias_grad>(dy, x, accumulate, scratch, partial, out,
                                                      rows);
  if (!sum.to.defined()) b.add(weight, out);
  alike ? dbias.give(b) : b.add_wide(bias, rows, dy.dtype());
}

/// Adds the gradients of a linear layer's weight and bias, which are inputs `weight` and `bias` of
/// the op, from dy (M, N) and x (M, K).
inline void add_linear_gradients(Backward& b, int weight, int bias, const Tensor& dy,
                                 const Tensor& x) {
  if (dy.device().is_gpu() && b.needs(weight) && b.needs(bias) && !Tape::current() &&
      dy.is_contiguous() && x.is_contiguous() && dy.numel() > 0 && x.numel() > 0)
    return add_weight_and_bias(b, weight, bias, dy, x);
  add_weight_gradient(b, weight, dy, x);
  add_bias_gradient(b, bias, dy);
}

}  // namespace weft::detail
