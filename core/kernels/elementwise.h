#pragma once
#include "weft/core/tensor.h"

namespace weft {

// The tables of ops. A new unary op is one line in the group that fits it, its formula in
// elementwise_math.h, and its function in autograd/.
enum class UnaryOp : std::uint8_t {
  // Integers too.
  neg,
  abs,
  relu,
  square,
  sign,
  // Integers too, with the shared loop.
  floor,
  ceil,
  round,
  // Floating point, with the shared loop.
  sin,
  cos,
  log1p,
  expm1,
  erf,
  // Floating point.
  exp,
  log,
  sqrt,
  rsqrt,
  tanh,
  sigmoid,
  gelu_tanh,
  gelu_erf,
  silu,
  softplus,
  count
};
enum class BinaryOp : std::uint8_t {
  // Integers too.
  add,
  sub,
  mul,
  minimum,
  maximum,
  floor_divide,
  remainder,
  // Floating point.
  div,
  pow,
  // dx from (x or y, dy); first of them is relu_bwd.
  relu_bwd,
  tanh_bwd,
  sigmoid_bwd,
  gelu_tanh_bwd,
  gelu_erf_bwd,
  silu_bwd,
  count
};
enum class CompareOp : std::uint8_t { eq, ne, lt, le, gt, ge, count };

/// True for the ops that integers support.
constexpr bool takes_integers(UnaryOp op) { return op < UnaryOp::sin; }
constexpr bool takes_integers(BinaryOp op) { return op < BinaryOp::div; }
/// True for the ops whose formula takes so long that the layout of the operands does not matter.
constexpr bool is_slow(BinaryOp op) {
  return op == BinaryOp::floor_divide || op == BinaryOp::remainder || op == BinaryOp::pow;
}
/// True for the ops that share one loop per dtype, which calls the formula through a pointer. A
/// loop of its own for every op would be compiled dozens of times more.
constexpr bool shares_loop(UnaryOp op) { return op >= UnaryOp::floor && op < UnaryOp::exp; }

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
/// out += alpha * x. On a GPU x may be bf16 when out is f32.
using AddScaledKernel = void(const Tensor& x, double alpha, const Tensor& out);
/// out *= factor.
using ScaleKernel = void(const Tensor& out, double factor);
/// out = factor * x, added to out when `adds`, with one floating-point factor in device memory. x
/// has out's dtype and may be out; in place a factor of 1 costs nothing.
using ScaleByKernel = void(const Tensor& x, const Tensor& factor, bool adds, const Tensor& out);

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
