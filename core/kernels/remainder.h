#pragma once
#include <bit>
#include <cstdint>

#include "weft/core/tensor.h"

namespace weft {

// Splits an f32 number into two halves that are stored separately: the nearest bf16 (ties away from
// zero), with which a model computes, and a 16-bit remainder. As integers, number = 65536 * upper +
// remainder, which loses no bit; 16 bits suffice because a tie never rounds down. (Ties to even
// would go both ways for the same upper half.) A NaN becomes the nearest quiet NaN, with remainder
// 0: rounding up the largest NaN, which a GPU produces, would give -0. The functions are constexpr
// so that CUDA kernels can call them too.
// Source: NVIDIA TransformerEngine, multi_tensor/adam.cu, store_param_remainders.

struct SplitFloat {
  bf16 upper;
  std::int16_t remainder;
};

constexpr SplitFloat split_float(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  SplitFloat s{};
  s.upper.bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : (bits + 0x8000u) >> 16);
  s.remainder = nan ? std::int16_t{0} : static_cast<std::int16_t>(bits & 0xffffu);
  return s;
}

constexpr float merge_float(bf16 upper, std::int16_t remainder) {
  return std::bit_cast<float>((static_cast<std::uint32_t>(upper.bits) << 16) +
                              static_cast<std::uint32_t>(std::int32_t{remainder}));
}

/// out (f32) = the numbers whose halves are upper (bf16) and remainder (u8, two per number), all
/// contiguous.
using MergeRemainderKernel = void(const Tensor& upper, const Tensor& remainder, const Tensor& out);
/// The inverse of merging.
using SplitRemainderKernel = void(const Tensor& x, const Tensor& upper, const Tensor& remainder);

namespace cpu {
MergeRemainderKernel merge_remainder;
SplitRemainderKernel split_remainder;
}  // namespace cpu
namespace cuda {
MergeRemainderKernel merge_remainder;
SplitRemainderKernel split_remainder;
}  // namespace cuda

}  // namespace weft
