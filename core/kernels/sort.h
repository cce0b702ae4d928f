#pragma once
#include "weft/core/tensor.h"

namespace weft {

// Both kernels work along the last axis of x (..., n) and write positions on it. NaN counts as the
// largest value.

/// indices (..., n, i64) = the stable order; scratch has the shape and dtype of indices.
using SortKernel = void(const Tensor& x, bool descending, const Tensor& scratch,
                        const Tensor& indices);
/// The largest k of topk on a GPU, which keeps them in shared memory; larger k uses sort.
inline constexpr std::int64_t kMaxTopk = 512;

/// indices (..., k, i64) = the k largest, in descending order; ties by position.
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
