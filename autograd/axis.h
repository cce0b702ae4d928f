#pragma once
#include "weft/autograd/operand.h"
#include "weft/core/error.h"
#include "weft/core/tensor.h"

namespace weft::detail {

/// `dim` as an axis in [0, ndim); negative values count from the end.
/// Throws Error "op: dim must be in [-n, n), got d", and for a scalar, which has no axes.
inline int axis_of(const char* op, const Tensor& x, int dim) {
  check_tensor(op, "x", x);
  check(x.ndim() > 0, "{}: x must have at least one axis, got a scalar", op);
  return normalize_dim(op, dim, x.ndim());
}

/// A view of `length` elements of one axis, from `begin` on, `step` apart. No tape records it.
inline Tensor part_of(const Tensor& x, int dim, std::int64_t begin, std::int64_t length,
                      std::int64_t step = 1) {
  Shape shape = x.shape(), strides = x.strides();
  shape[dim] = length;
  if (length > 1) strides[dim] *= step;  // with one element or none the stride is never used
  return x.alias(shape, strides, begin * x.strides()[dim]);
}

}  // namespace weft::detail
