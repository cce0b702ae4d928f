#pragma once
#include "weft/core/tensor.h"

namespace weft {

// Both work on the last axis of x (..., n) and write positions in it. NaN counts as the largest
// value.

/// indices (..., n, i64) = the stable order; scratch is like indices.
using SortKernel = void(const Tensor& x, bool descending, const Tensor& scratch,
                        const Tensor& indices);
/// The largest k of topk on a GPU, which keeps them in the memory of a block; beyond it, sort.
inline constexpr std::int64_t kTopkMost = 512;

/// indices (..., k, i64) = the k largest, largest first, equal ones by position.
using TopkKernel = void(const Tensor& x, const Tensor& indices);

namespace cpu {
SortKernel sort;
TopkKernel topk;
}  // namespace cpu
namespace cuda {
SortKernel sort;
TopkKernel topk;
}  // namespace cuda

}  // namespace weft
