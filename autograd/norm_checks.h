#pragma once
#include "weft/autograd/operand.h"
#include "weft/core/dtype.h"
#include "weft/core/error.h"
#include "weft/core/tensor.h"

namespace weft::detail {

inline void check_norm_input(const char* op, const Tensor& x) {
  check_tensor(op, "x", x);
  if (!is_compute(x.dtype())) throw_bad_dtype(op, x.dtype(), kFloatingNames);
  check(x.ndim() >= 1 && x.dim(-1) > 0, "{}: x must have a non-empty last axis, got shape {}", op,
        x.shape());
}

/// An operand of the norm must have x's dtype and device and this shape; it may be null.
inline void check_norm_operand(const char* op, const char* what, const Tensor& t,
                               const Shape& shape, const char* why, const Tensor& x) {
  if (!t.defined()) return;
  check(t.shape() == shape, "{}: {} must have shape {} ({} {}), got {}", op, what, shape, why,
        x.shape(), t.shape());
  check(t.dtype() == x.dtype(), "{}: {} must have dtype {} like x, got {}", op, what, x.dtype(),
        t.dtype());
  check(t.device() == x.device(), "{}: {} must be on device {} like x, got {}", op, what,
        x.device(), t.device());
}

/// One value per row: f64 for f64, else f32.
inline Tensor row_statistic(const Tensor& x) {
  Shape rows = x.shape();
  rows.pop_back();
  return Tensor::empty(rows, x.dtype() == DType::f64 ? DType::f64 : DType::f32, x.device());
}

}  // namespace weft::detail
