#pragma once
#include "weft/core/tensor.h"

namespace weft {

// x is seen as (outer, D, inner), where D is axis `dim`; indices are i32 or i64 and in range.

/// bad (2, i64) = the first value of `index` outside [0, limit) as {1, value}, or {0, 0}.
using FindBadIndexKernel = void(const Tensor& index, std::int64_t limit, const Tensor& bad);
/// out (outer, n, inner): out[o, j, :] = x[o, index[j], :].
using IndexSelectKernel = void(const Tensor& x, const Tensor& index, int dim, const Tensor& out);
/// out (outer, D, inner): out[o, index[j], :] += source[o, j, :], for j upwards.
using IndexAddKernel = void(const Tensor& source, const Tensor& index, int dim, const Tensor& out);
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
