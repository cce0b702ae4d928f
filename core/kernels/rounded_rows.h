#pragma once
#include "weft/core/kernels/quantize.h"

namespace weft {

/// What a kernel that writes the rows of y (R, C), f32 or bf16, also writes for the FP8 product
/// that reads them, as fp8_amax and quantize, or quantize_tiles with blocks of one row, would. Null
/// tensors: nothing.
struct RoundedRows {
  Tensor amax = {};     ///< (R) f32: the largest |y| of each row
  Tensor codes = {};    ///< (R, C) e4m3
  Tensor scale = {};    ///< (1) f32, given: that of all codes; null: each block has its own
  Tensor inverse = {};  ///< f32: (R, blocks) of blocks; with `scale` (1), given
  Fp8Scaling how = {};  ///< of blocks
  bool wanted() const { return amax.defined() || codes.defined(); }
};
inline constexpr std::int64_t kFp8Block = 128;  ///< neighbours that share the scale of a block
constexpr std::int64_t fp8_blocks(std::int64_t columns) {
  return (columns + kFp8Block - 1) / kFp8Block;
}

}  // namespace weft
