#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// The layout of the rows of the experts.
struct RowLayout {
  std::int64_t experts = 0;
  std::int64_t alignment = 1;  ///< the rows of each expert are padded to a multiple of this
  std::int64_t capacity = 0;   ///< if not 0, every expert has exactly this many rows
};

/// Rows of an expert with `count` slots.
constexpr std::int64_t padded_rows(std::int64_t count, const RowLayout& layout) {
  if (layout.capacity) return layout.capacity;
  return (count + layout.alignment - 1) / layout.alignment * layout.alignment;
}

/// The largest number of rows for `slots` slots.
constexpr std::int64_t max_rows(std::int64_t slots, const RowLayout& layout) {
  if (layout.capacity) return layout.experts * layout.capacity;
  const std::int64_t used = slots < layout.experts ? slots : layout.experts;
  return slots + used * (layout.alignment - 1);
}

/// Slots counted by one warp of a GPU.
inline constexpr std::int64_t kSortChunk = 256;
/// The most experts on a GPU, where each warp counts them in shared memory.
inline constexpr std::int64_t kMaxExperts = 2048;
/// Scratch elements (i64) on a GPU: the slot counts of each chunk and expert, then the first row of
/// each expert.
constexpr std::int64_t sort_by_expert_scratch(std::int64_t slots, std::int64_t experts) {
  return ((slots + kSortChunk - 1) / kSortChunk + 1) * experts;
}

/// experts (slots) i32 or i64, where -1 or any other value out of range has no row  ->  row_of
/// (slots, i64; -1: none), slot_of (max_rows(), i64; -1: padding or unused), rows (experts, i64).
/// Scratch: i64, sort_by_expert_scratch() elements on a GPU, else null.
using SortByExpertKernel = void(const Tensor& experts, const RowLayout& layout,
                                const Tensor& scratch, const Tensor& row_of, const Tensor& slot_of,
                                const Tensor& rows);
/// y (N, C) = x (T, C) at token slot_of (N) / k; zeros where slot_of is -1. Also of codes, in e4m3.
using PermuteKernel = void(const Tensor& x, const Tensor& slot_of, std::int64_t k, const Tensor& y);
/// y (T, C) = the sum of x (N, C) at rows row_of (T, k), in the order of k; -1 adds nothing.
using CombineKernel = void(const Tensor& x, const Tensor& row_of, const Tensor& y);
/// chunks (n, 3, i64) of consecutive rows that move together, in the order of the rows they become:
/// the first row before, or -1 for padding; the first row after; how many.  ->  row_of (rows
/// before, i64), slot_of (rows after, i64; -1: padding).
using PlaceChunksKernel = void(const Tensor& chunks, const Tensor& row_of, const Tensor& slot_of);

namespace cpu {
SortByExpertKernel sort_by_expert;
PlaceChunksKernel place_chunks;
PermuteKernel permute_tokens;
CombineKernel combine_tokens;
}  // namespace cpu
namespace cuda {
SortByExpertKernel sort_by_expert;
PlaceChunksKernel place_chunks;
PermuteKernel permute_tokens;
CombineKernel combine_tokens;
}  // namespace cuda

}  // namespace weft
