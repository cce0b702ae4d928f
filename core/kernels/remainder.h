#pragma once
#include <bit>
#include <cstdint>

#include "weft/core/tensor.h"

namespace weft {

// An f32 number in two halves that are kept apart: the bf16 next to it (a tie away from zero),
// which a model computes with, and 16 bits that say what is missing. With the bits of all three
// read as integers, number = 65536 * upper + remainder: no bit is lost, and 16 bits of remainder
// are enough because a tie never goes down. (With ties to even it would go both ways for the same
// upper half.) A NaN becomes the quiet one next to it, without a remainder: rounded up, the largest
// of them, which is what a GPU gives, would be -0. The functions are constexpr so that CUDA kernels
// may call them too. Source: NVIDIA TransformerEngine, multi_tensor/adam.cu,
// store_param_remainders.

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

/// out (f32) = the numbers whose halves are upper (bf16) and remainder (u8, two a number). All of
/// them contiguous.
using MergeRemainderKernel = void(const Tensor& upper, const Tensor& remainder, const Tensor& out);
/// The way back.
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
