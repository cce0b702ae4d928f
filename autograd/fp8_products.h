#pragma once
// What every op with FP8 products needs: rounding an operand as a recipe says, and multiplying.
#include "weft/autograd/fp8.h"
#include "weft/core/kernels/fp8_product.h"
#include "weft/core/kernels/rounded_rows.h"

namespace weft::fp8 {

/// The sizes of a layer's three products, and how their operands are rounded.
///   forward y (R, O) = x (R, I) w (E, O, I)^T; input_grad dx = dy w; weight_grad dw = dy^T x
struct Products {
  Recipe recipe;
  DType dtype;         ///< of x, weight and results: f32 or bf16
  std::int64_t count;  ///< E, 1 for a plain layer
  std::int64_t all_rows, outputs, inputs;
  Tensor rows = {};      ///< i64 (E) in host memory: rows of each group; null for a plain layer
  Delayed delayed = {};  ///< with delayed scales

  RowGroups row_groups() const {
    return {.count = count,
            .each = all_rows,
            .rows = rows.defined() ? rows.data<std::int64_t>() : nullptr};
  }
  RowGroups weight_groups() const { return {.count = count, .each = outputs}; }
};

/// Throws Error "op: ..." unless the sizes are multiples of 16, the device computes FP8 products
/// and delayed scales have a state.
void check_products(const char* op, const Products& p, Device device);

/// x (R, I), for forward. `known`: what the op that made x has found for this product, from
/// take_rows().
Quantized round_x(const Products& p, const Tensor& x, bool counts, const Copies& copies = {},
                  const ReduceAmax& reduce = {}, const RoundedRows& known = {});
/// x or dy (R, C) in blocks along the rows, for weight_grad with block scales.
Quantized round_along_rows(const Products& p, const Tensor& t, DType to);
/// w (E O, I). Comes from the state's cache where that holds it.
Quantized round_weight(const Products& p, const Tensor& weight, bool counts, bool columns,
                       const LayerState* state);
/// dy (R, O), for both products of backward, with block scales for input_grad.
Quantized round_gradient(const Products& p, const Tensor& dy, const Copies& copies = {},
                         const ReduceAmax& reduce = {});

/// out = the product of rounded operands (+ bias, or + out if it accumulates). See
/// Fp8ProductKernel; with block scales the operands are multiplied as numbers of p.dtype, which
/// holds them exactly.
void multiply(const Products& p, GroupedProduct kind, const Quantized& a, const Quantized& b,
              const Tensor& bias, const Tensor& out, bool accumulate = false);
/// The same for operands that are not rounded.
void multiply_plain(const Products& p, GroupedProduct kind, const Tensor& a, const Tensor& b,
                    const Tensor& bias, const Tensor& out, bool accumulate = false);

}  // namespace weft::fp8
