#pragma once
#include "weft/core/kernels/grouped_linear.h"
#include "weft/core/kernels/quantize.h"

namespace weft {

/// Operands of a product per group of rows, as in GroupedGemmKernel: x (R, I) and w (E, O, I) for
/// forward, dy (R, O) and w for input_grad, dy and x for weight_grad; e4m3 or e5m2.
///
/// A CPU reads all of them by row. A GPU multiplies rows with rows, so the operands of input_grad
/// and weight_grad whose inner axis is not their last are transposed, group by group: w as (E, I,
/// O), dy as (O, rows of the group), x as (I, rows of the group).
struct Fp8ProductIn {
  const Tensor &a, &b;
  const Tensor &a_inverse, &b_inverse;  ///< f32, one for each group or one for all
  const Tensor& bias;                   ///< (E, O), dtype of out, added by forward; or null
  const Tensor& rows;                   ///< i64 (E) in host memory; null: one group of all rows
  GroupedProduct kind;
  std::int64_t all_rows, outputs, inputs;
  bool accumulate;
  Device device() const { return a.device(); }
  std::int64_t count() const { return rows.defined() ? rows.numel() : 1; }
  std::int64_t rows_of(std::int64_t e) const {
    return rows.defined() ? rows.data<std::int64_t>()[e] : all_rows;
  }
};
/// out, f32 or bf16, = the product times both inverse scales (+ bias or + out), with exact
/// products, f32 sums and one rounding at the end. The weight gradient of an empty group is 0.
/// scratch: f32 with fp8_product_scratch() elements, or null.
using Fp8ProductKernel = void(const Fp8ProductIn& in, const Tensor& scratch, const Tensor& out);

/// A CPU multiplies f32 copies of the operands; a GPU needs nothing.
inline std::int64_t fp8_product_scratch(const Fp8ProductIn& in, const Tensor& out) {
  return in.device().is_gpu() ? 0 : in.a.numel() + in.b.numel() + out.numel();
}

namespace cpu {
Fp8ProductKernel fp8_product;
}  // namespace cpu
namespace cuda {
Fp8ProductKernel fp8_product;
}  // namespace cuda

}  // namespace weft
