#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// Consecutive groups of the rows of a matrix, each with a scale of its own: the rows of an expert.
struct RowGroups {
  std::int64_t count = 1;
  std::int64_t each = 0;               ///< rows of every group
  const std::int64_t* rows = nullptr;  ///< in host memory: rows of each group, in place of `each`
  constexpr std::int64_t of(std::int64_t g) const { return rows ? rows[g] : each; }
};

/// How the largest magnitude becomes a scale.
struct Fp8Scaling {
  float epsilon = 0;          ///< a smaller largest magnitude counts as this
  bool power_of_two = false;  ///< rounds the scale down to a power of two
  std::int32_t margin = 0;    ///< then divides it by 2^margin
};

/// The largest finite number of e4m3 or e5m2.
constexpr float fp8_largest(DType t) { return t == DType::e5m2 ? 57344.0f : 448.0f; }

/// amax[g] = the largest |x| of group g, 0 without elements, NaN if there is one; not less than its
/// old value when `keep`. x (R, C), f32 or bf16; amax f32, one for each group or one for all.
using Fp8AmaxKernel = void(const Tensor& x, const RowGroups& groups, bool keep, const Tensor& amax);

/// scale = largest / amax, and 1 where amax is 0, infinite or NaN; inverse = 1 / scale. All f32, of
/// one length.
/// Source  TransformerEngine, common/recipe/recipe_common.cuh, compute_scale_from_amax
using Fp8ScaleKernel = void(const Tensor& amax, float largest, const Fp8Scaling& how,
                            const Tensor& scale, const Tensor& inverse);

/// x times the scale of its group, rounded: out (R, C) by row; transposed: group after group, each
/// (C, its rows). Either may be null. e4m3 or e5m2: ties to even, finite values saturate. scale:
/// one for each group or one for all. x may have codes already, with a null scale and out: they are
/// transposed.
using QuantizeKernel = void(const Tensor& x, const RowGroups& groups, const Tensor& scale,
                            const Tensor& out, const Tensor& transposed);

/// A block of numbers with one scale. Blocks at the end of a group's rows, or of the columns, are
/// cut off.
struct Fp8Tile {
  std::int64_t rows, columns;
};
/// Number of blocks along the rows of all groups.
constexpr std::int64_t fp8_tile_rows(const RowGroups& groups, Fp8Tile tile) {
  std::int64_t n = 0;
  for (std::int64_t g = 0; g < groups.count; ++g) n += (groups.of(g) + tile.rows - 1) / tile.rows;
  return n;
}

/// Each block with a scale from its own largest magnitude: out (R, C), inverse (blocks along the
/// rows, blocks along the columns) f32.
using QuantizeTilesKernel = void(const Tensor& x, const RowGroups& groups, const Fp8Tile& tile,
                                 const Fp8Scaling& how, const Tensor& out, const Tensor& inverse);
/// out (R, C), f32 or bf16, = q times the inverse scale of its block. A tile of 0 rows: one scale
/// for each group, or for all.
using DequantizeKernel = void(const Tensor& q, const RowGroups& groups, const Fp8Tile& tile,
                              const Tensor& inverse, const Tensor& out);

/// The delayed scales of the three operands of a layer: x, weight and dy, in this order.
struct Fp8Delayed {
  const Tensor& history;  ///< (H, 3) f32: the largest magnitudes of this step, then of those before
  const Tensor& scale;    ///< (3) f32; 0 stands for 1
  Device device() const { return history.device(); }
};
/// The largest numbers of the formats of x and weight, and of dy.
struct Fp8Limits {
  float forward, gradient;
};
/// The end of a step: scale = the largest of the history's rows as in Fp8ScaleKernel, unchanged
/// where that is 0, infinite or NaN; then every row moves down by one and the first becomes 0.
using Fp8RollKernel = void(const Fp8Delayed& state, const Fp8Limits& limits, const Fp8Scaling& how);
/// The scale of operand `slot` and its inverse, one f32 each.
using Fp8TakeKernel = void(const Fp8Delayed& state, std::int64_t slot, const Tensor& scale,
                           const Tensor& inverse);

namespace cpu {
Fp8AmaxKernel fp8_amax;
Fp8ScaleKernel fp8_scale;
QuantizeKernel quantize;
QuantizeTilesKernel quantize_tiles;
DequantizeKernel dequantize;
Fp8RollKernel fp8_roll;
Fp8TakeKernel fp8_take;
}  // namespace cpu
namespace cuda {
Fp8AmaxKernel fp8_amax;
Fp8ScaleKernel fp8_scale;
QuantizeKernel quantize;
QuantizeTilesKernel quantize_tiles;
DequantizeKernel dequantize;
Fp8RollKernel fp8_roll;
Fp8TakeKernel fp8_take;
}  // namespace cuda

}  // namespace weft
