#pragma once
#include "weft/autograd/operand.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/elementwise.h"

namespace weft::detail {

/// Whether x has e4m3 or e5m2. These have no arithmetic of their own: ops that take them compute in
/// f32, and so are their results. Such a tensor has no gradient.
inline bool has_8_bits(const Tensor& x) { return is_floating(x.dtype()) && !is_compute(x.dtype()); }

inline void check_floating(const char* op, DType t) {
  if (!is_compute(t)) [[unlikely]]
    throw_bad_dtype(op, t, kFloatingNames);
}
inline void check_numeric(const char* op, DType t) {
  if (!is_compute(t) && !is_integral(t)) [[unlikely]]
    throw_bad_dtype(op, t, kNumericNames);
}

inline void check_floating(const char* op, const Tensor& x, const char* label = "x") {
  check_tensor(op, label, x);
  check_floating(op, x.dtype());
}
inline void check_numeric(const char* op, const Tensor& x, const char* label = "x") {
  check_tensor(op, label, x);
  check_numeric(op, x.dtype());
}

inline void check_pair(const char* op, const Tensor& a, const Tensor& b) {
  check_tensor(op, "a", a);
  check_tensor(op, "b", b);
  check(a.dtype() == b.dtype(), "{}: both operands must have one dtype, got {} and {}", op,
        a.dtype(), b.dtype());
  check(a.device() == b.device(), "{}: both operands must be on one device, got {} and {}", op,
        a.device(), b.device());
}

/// A view of x broadcast to `shape`: new leading axes, and stride 0 along axes of length 1. For
/// kernels only: the tape does not record it.
inline Tensor broadcast_alias(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  Shape strides = Shape::filled(shape.size(), 0);
  const int front = shape.size() - x.ndim();
  for (int i = 0; i < x.ndim(); ++i)
    if (x.dim(i) != 1) strides[front + i] = x.strides()[i];
  return x.alias(shape, strides, 0);
}

inline Shape common_shape(const char* op, const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() ? a.shape() : broadcast_shapes(op, a.shape(), b.shape());
}

/// The gradient of a broadcast operand: summed over the broadcast axes.
inline Tensor to_operand(const Tensor& dx, const Shape& shape) {
  return dx.shape() == shape ? dx : sum_to(dx, shape);
}

/// A scalar 0 of x's dtype and device, which broadcasts. where() uses it as the gradient where the
/// slope is 0: multiplying an infinite gradient by 0 would give NaN.
inline Tensor zero_of(const Tensor& x) { return Tensor::zeros({}, x.dtype(), x.device()); }

/// Runs the kernel without recording.
inline Tensor run_unary(const Tensor& x, UnaryOp op) {
  Tensor y = empty_like(x);
  dispatch<cpu::unary, cuda::unary>(x, op, y);
  return y;
}
inline Tensor run_binary(const Tensor& a, const Tensor& b, BinaryOp op, const Shape& shape) {
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  if (a.shape() == shape && b.shape() == shape)
    dispatch<cpu::binary, cuda::binary>(a, b, op, y);
  else
    dispatch<cpu::binary, cuda::binary>(broadcast_alias(a, shape), broadcast_alias(b, shape), op,
                                        y);
  return y;
}
inline Tensor run_scalar(const Tensor& a, double value, BinaryOp op, bool reversed = false) {
  Tensor y = empty_like(a);
  dispatch<cpu::binary_scalar, cuda::binary_scalar>(a, value, op, reversed, y);
  return y;
}

}  // namespace weft::detail
