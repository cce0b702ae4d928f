#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// A tensor viewed as (outer, length, inner), where length is that of axis `dim`.
struct AxisExtent {
  std::int64_t outer = 1, length, inner = 1;

  AxisExtent(const Tensor& t, int dim) : length(t.dim(dim)) {
    for (int i = 0; i < dim; ++i) outer *= t.dim(i);
    for (int i = dim + 1; i < t.ndim(); ++i) inner *= t.dim(i);
  }
};

// x is viewed as (outer, D, inner), where D is axis `dim`. Indices are i32 or i64 and in range. On
// a GPU they may be unchecked: its kernels skip those out of range.

/// CPU: bad (2, i64) = the first value of `index` outside [0, limit) as {1, value}, or {0, 0}. GPU:
/// bad is null; the kernel reports such a value in cuda::detail::index_fault(), and `op` and
/// `label` must have static lifetime.
using FindBadIndexKernel = void(const Tensor& index, const char* op, const char* label,
                                std::int64_t limit, const Tensor& bad);
/// out (outer, n, inner): out[o, j, :] = x[o, index[j], :].
using IndexSelectKernel = void(const Tensor& x, const Tensor& index, int dim, const Tensor& out);
/// out (outer, D, inner): out[o, index[j], :] += source[o, j, :], in ascending j. `scratch` is null
/// on the CPU; on a GPU it is i32 (index_add_scratch(n)), since indices are sorted first; sums of
/// 16 bits are accumulated in f32, and out may be f32 for such a source. n and D are below 2^31 on
/// a GPU.
using IndexAddKernel = void(const Tensor& source, const Tensor& index, int dim,
                            const Tensor& scratch, const Tensor& out);

/// The radix sort of index_add processes this many indices per block, with this many buckets per
/// pass.
inline constexpr std::int64_t kIndexTile = 2048, kIndexDigits = 256;
/// Two buffers of keys and positions, and the histogram of digits for each tile.
constexpr std::int64_t index_add_scratch(std::int64_t n) {
  return 4 * n + kIndexDigits * ((n + kIndexTile - 1) / kIndexTile);
}

/// out (outer, n, inner): out[o, j, i] = x[o, index[o, j, i], i].
using GatherKernel = void(const Tensor& x, const Tensor& index, int dim, const Tensor& out);
/// out (outer, D, inner): out[o, index[o, j, i], i] += source[o, j, i], in ascending j.
using ScatterAddKernel = void(const Tensor& source, const Tensor& index, int dim,
                              const Tensor& out);
/// out (outer, D, inner): out[o, index[o, j, i], i] = source[o, j, i], in ascending j.
using ScatterKernel = void(const Tensor& source, const Tensor& index, int dim, const Tensor& out);
/// out (..., classes), initially zero: out[..., ids[...]] = 1.
using OneHotKernel = void(const Tensor& ids, const Tensor& out);
/// out (..., R, C) = x where column - row <= diagonal, else 0.
using TrilKernel = void(const Tensor& x, std::int64_t diagonal, const Tensor& out);

namespace cpu {
FindBadIndexKernel find_bad_index;
IndexSelectKernel index_select;
IndexAddKernel index_add;
GatherKernel gather;
ScatterAddKernel scatter_add;
ScatterKernel scatter;
OneHotKernel one_hot;
TrilKernel tril;
}  // namespace cpu
namespace cuda {
FindBadIndexKernel find_bad_index;
IndexSelectKernel index_select;
IndexAddKernel index_add;
GatherKernel gather;
ScatterAddKernel scatter_add;
ScatterKernel scatter;
OneHotKernel one_hot;
TrilKernel tril;
}  // namespace cuda

}  // namespace weft
