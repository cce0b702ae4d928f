#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// A tensor seen as (outer, length, inner), where length is that of axis `dim`.
struct AxisExtent {
  std::int64_t outer = 1, length, inner = 1;

  AxisExtent(const Tensor& t, int dim) : length(t.dim(dim)) {
    for (int i = 0; i < dim; ++i) outer *= t.dim(i);
    for (int i = dim + 1; i < t.ndim(); ++i) inner *= t.dim(i);
  }
};

// x is seen as (outer, D, inner) with D = axis `dim`. Indices are i32 or i64 and in range. On a GPU
// they may not have been checked yet: its kernels skip those out of range.

/// CPU: bad (2, i64) = the first value of `index` outside [0, limit) as {1, value}, or {0, 0}. A
/// GPU has no bad: it fills cuda::detail::index_fault() from a value outside, and `op` and `label`
/// must live as long as the process.
using FindBadIndexKernel = void(const Tensor& index, const char* op, const char* label,
                                std::int64_t limit, const Tensor& bad);
/// out (outer, n, inner): out[o, j, :] = x[o, index[j], :].
using IndexSelectKernel = void(const Tensor& x, const Tensor& index, int dim, const Tensor& out);
/// out (outer, D, inner): out[o, index[j], :] += source[o, j, :], for j upwards. `scratch` is i32
/// (index_add_scratch(n)) on a GPU, where the indices are sorted first and bf16 sums are f32 in
/// between; null on the CPU. n and D are below 2^31 on a GPU.
using IndexAddKernel = void(const Tensor& source, const Tensor& index, int dim,
                            const Tensor& scratch, const Tensor& out);

/// The radix sort of index_add takes this many indices a block and these bits a pass.
inline constexpr std::int64_t kIndexTile = 2048, kIndexDigits = 256;
/// Two buffers of keys and positions, and how often each digit occurs in each tile.
constexpr std::int64_t index_add_scratch(std::int64_t n) {
  return 4 * n + kIndexDigits * ((n + kIndexTile - 1) / kIndexTile);
}

/// out (outer, n, inner): out[o, j, i] = x[o, index[o, j, i], i].
using GatherKernel = void(const Tensor& x, const Tensor& index, int dim, const Tensor& out);
/// out (outer, D, inner): out[o, index[o, j, i], i] += source[o, j, i], for j upwards.
using ScatterAddKernel = void(const Tensor& source, const Tensor& index, int dim,
                              const Tensor& out);
/// out (..., classes), zeros before: out[..., ids[...]] = 1.
using OneHotKernel = void(const Tensor& ids, const Tensor& out);
/// out (..., R, C) = x where column - row <= diagonal, else 0.
using TrilKernel = void(const Tensor& x, std::int64_t diagonal, const Tensor& out);

namespace cpu {
FindBadIndexKernel find_bad_index;
IndexSelectKernel index_select;
IndexAddKernel index_add;
GatherKernel gather;
ScatterAddKernel scatter_add;
OneHotKernel one_hot;
TrilKernel tril;
}  // namespace cpu
namespace cuda {
FindBadIndexKernel find_bad_index;
IndexSelectKernel index_select;
IndexAddKernel index_add;
GatherKernel gather;
ScatterAddKernel scatter_add;
OneHotKernel one_hot;
TrilKernel tril;
}  // namespace cuda

}  // namespace weft
