#pragma once
#include "weft/core/tensor.h"

namespace weft {

enum class UnaryOp : std::uint8_t {
  neg,
  exp,
  log,
  sqrt,
  rsqrt,
  abs,
  tanh,
  sigmoid,
  relu,
  gelu_tanh,
  gelu_erf,
  silu,
  softplus,
  square,
  sign
};
/// The *_bwd ops compute dx from (x or y, dy).
enum class BinaryOp : std::uint8_t {
  add,
  sub,
  mul,
  div,
  pow,
  minimum,
  maximum,
  relu_bwd,
  tanh_bwd,
  sigmoid_bwd,
  gelu_tanh_bwd,
  gelu_erf_bwd,
  silu_bwd
};
enum class CompareOp : std::uint8_t { eq, ne, lt, le, gt, ge };

// Operands have the shape of `out` and any strides (0 on a broadcast axis).
using UnaryKernel = void(const Tensor& x, UnaryOp op, const Tensor& out);
using BinaryKernel = void(const Tensor& a, const Tensor& b, BinaryOp op, const Tensor& out);
/// out = a op value, or value op a when `reversed`.
using BinaryScalarKernel = void(const Tensor& a, double value, BinaryOp op, bool reversed,
                                const Tensor& out);
using ClampKernel = void(const Tensor& x, double low, double high, const Tensor& out);
/// out = dy where low <= x <= high, else 0.
using ClampBwdKernel = void(const Tensor& x, const Tensor& dy, double low, double high,
                            const Tensor& out);
/// out is bool.
using CompareKernel = void(const Tensor& a, const Tensor& b, CompareOp op, const Tensor& out);
using CompareScalarKernel = void(const Tensor& a, double value, CompareOp op, const Tensor& out);
using WhereKernel = void(const Tensor& condition, const Tensor& a, const Tensor& b,
                         const Tensor& out);
/// out += alpha * x.
using AddScaledKernel = void(const Tensor& x, double alpha, const Tensor& out);
/// out *= factor.
using ScaleKernel = void(const Tensor& out, double factor);
/// The same, with one floating-point factor in device memory; a factor of 1 costs nothing.
using ScaleByKernel = void(const Tensor& out, const Tensor& factor);

namespace cpu {
UnaryKernel unary;
BinaryKernel binary;
BinaryScalarKernel binary_scalar;
ClampKernel clamp;
ClampBwdKernel clamp_bwd;
CompareKernel compare;
CompareScalarKernel compare_scalar;
WhereKernel where;
AddScaledKernel add_scaled;
ScaleKernel scale;
ScaleByKernel scale_by;
}  // namespace cpu
namespace cuda {
UnaryKernel unary;
BinaryKernel binary;
BinaryScalarKernel binary_scalar;
ClampKernel clamp;
ClampBwdKernel clamp_bwd;
CompareKernel compare;
CompareScalarKernel compare_scalar;
WhereKernel where;
AddScaledKernel add_scaled;
ScaleKernel scale;
ScaleByKernel scale_by;
}  // namespace cuda

}  // namespace weft
