#pragma once
#include "weft/core/kernels/gemm.h"

namespace weft {

/// Products of a matrix per group of rows. forward: y (N, O) = x (N, I) w (E, O, I)^T; input_grad:
/// dx = dy w; weight_grad: dw = dy^T x, a sum over the rows of the group.
enum class GroupedProduct : std::uint8_t { forward, input_grad, weight_grad };

/// The shape of one group's product and the offsets of its operands, in elements.
struct GroupOperands {
  GemmShape shape;
  std::int64_t a = 0, b = 0, out = 0;

  /// `first`, `rows`: the row range of group e.
  GroupOperands(GroupedProduct kind, std::int64_t e, std::int64_t first, std::int64_t rows,
                std::int64_t outputs, std::int64_t inputs, bool accumulate) {
    const std::int64_t matrix = e * outputs * inputs;
    shape.accumulate = accumulate;
    if (kind == GroupedProduct::weight_grad) {
      set(outputs, inputs, rows, outputs, inputs);
      shape.trans_a = true;
      a = first * outputs;
      b = first * inputs;
      out = matrix;
      return;
    }
    const bool forward = kind == GroupedProduct::forward;
    const std::int64_t from = forward ? inputs : outputs, to = forward ? outputs : inputs;
    set(rows, to, from, from, inputs);
    shape.trans_b = forward;
    a = first * from;
    b = matrix;
    out = first * to;
  }

 private:
  void set(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t lda, std::int64_t ldb) {
    shape.m = m;
    shape.n = n;
    shape.k = k;
    shape.lda = lda;
    shape.ldb = ldb;
    shape.ldc = n;
  }
};

/// forward: a = x, b = w; input_grad: a = dy, b = w; weight_grad: a = dy, b = x, which skips the
/// matrices of empty groups. `rows` (E, i64) is in host memory and sums to N. f32, f64: the same
/// dtype for all; bf16: the weight gradient may be f32. scratch: f32 with grouped_scratch()
/// elements.
using GroupedGemmKernel = void(const Tensor& a, const Tensor& b, GroupedProduct kind,
                               const Tensor& rows, bool accumulate, const Tensor& scratch,
                               const Tensor& out);

/// The row widths of y and x.
struct GroupedWidths {
  std::int64_t outputs, inputs;
  GroupedWidths(const Tensor& a, const Tensor& b, GroupedProduct kind)
      : outputs(kind == GroupedProduct::weight_grad ? a.dim(1) : b.dim(1)), inputs(b.dim(-1)) {}
};

inline std::int64_t grouped_scratch(const Tensor& a, const Tensor& b, GroupedProduct kind) {
  if (!is_half(a.dtype())) return 0;  // one sum a product
  const GroupedWidths w(a, b, kind);
  // As if one group had all rows.
  const GroupOperands largest(kind, 0, 0, a.dim(0), w.outputs, w.inputs, false);
  return gemm_scratch(largest.shape, a.dtype(), a.device());
}

namespace cpu {
GroupedGemmKernel grouped_gemm;
}  // namespace cpu
namespace cuda {
GroupedGemmKernel grouped_gemm;
}  // namespace cuda

}  // namespace weft
