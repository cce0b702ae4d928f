#pragma once
#include "weft/autograd/elementwise_common.h"
#include "weft/autograd/view.h"
#include "weft/core/kernels/reduce.h"

namespace weft::detail {

/// The axes that a reduction runs over, and the (outer, reduced, inner) view that the kernels read.
class Axes {
 public:
  Axes() = default;
  /// `dims` may be negative and in any order; empty means all.
  Axes(const char* op, const Shape& shape, const Dims& dims) {
    for (const int dim : dims) {
      const int i = normalize_dim(op, dim, shape.size());
      check(!reduced(i), "{}: every dim may be given once, got {} again", op, dim);
      reduce(i);
    }
    if (dims.empty()) mask_ = 0xff;
    finish(shape);
  }
  void reduce(int axis) { mask_ = static_cast<std::uint8_t>(mask_ | 1u << axis); }
  bool reduced(int axis) const { return mask_ >> axis & 1; }

  /// Computes the extent; call it after the last reduce().
  void finish(const Shape& shape) {
    int first = shape.size(), last = -1;  // among the reduced axes that are longer than 1
    for (int i = 0; i < shape.size(); ++i) {
      if (!reduced(i)) continue;
      extent.reduced *= shape[i];
      if (shape[i] == 1) continue;
      first = std::min(first, i);
      last = i;
    }
    for (int i = 0; i < shape.size(); ++i) {
      if (reduced(i)) continue;
      if (i > first && i < last && shape[i] != 1) adjacent = false;
      (i < first ? extent.outer : extent.inner) *= shape[i];
    }
    if (!adjacent) extent = {extent.outer * extent.inner, extent.reduced, 1};
  }

  Shape result_shape(const Shape& shape, bool keepdim) const {
    Shape out;
    for (int i = 0; i < shape.size(); ++i) {
      if (!reduced(i))
        out.push_back(shape[i]);
      else if (keepdim)
        out.push_back(1);
    }
    return out;
  }

  ReduceExtent extent;
  bool adjacent = true;  ///< false: as_rows moves the reduced axes to the end

 private:
  std::uint8_t mask_ = 0;
};

/// x in the memory layout of axes.extent; the tape does not record it.
inline Tensor as_rows(const Tensor& x, const Axes& axes) {
  if (axes.adjacent) return x.is_contiguous() ? x : contiguous(x.detach());
  Shape shape, strides;
  for (const bool moved : {false, true})
    for (int i = 0; i < x.ndim(); ++i)
      if (axes.reduced(i) == moved) {
        shape.push_back(x.dim(i));
        strides.push_back(x.strides()[i]);
      }
  return contiguous(x.alias(shape, strides, 0));
}

/// Runs the kernel with its scratch. `dtype` is the dtype of the result.
inline Tensor run_reduce(const Tensor& rows, ReduceOp op, const Axes& axes, const Shape& shape,
                         DType dtype, const Tensor& center = {}, double scale = 1) {
  Tensor y = Tensor::empty(shape, dtype, rows.device());
  const ReduceExtent& e = axes.extent;
  const std::int64_t chunks = reduce_chunks(e, rows.device());
  Tensor partial;
  if (chunks > 1)
    partial = Tensor::empty({e.outer * chunks * e.inner},
                            is_compute(rows.dtype()) ? DType::f64 : DType::i64, rows.device());
  dispatch<cpu::reduce, cuda::reduce>(rows, op, e, center, scale, partial, y);
  return y;
}

}  // namespace weft::detail
