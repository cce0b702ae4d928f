#pragma once
#include "weft/core/tensor.h"

namespace weft {

// Ops that read and write by index. Indices are i32 or i64 tensors on x's device. Each is checked
// before anything is written; negative ones do not count from the end. All ops run on cpu, cuda and
// meta (where values cannot be checked) and are differentiable any number of times. Sums run in the
// order of the indices, so results have the same bits for every number of threads.

/// The elements at index[0], index[1], ... of one axis.
///
/// Shapes   x (... D ...), index (n)  ->  (... n ...)
/// Dtypes   any
/// Saves    index
/// Throws   Error "index_select: index must be in [0, D), got i", and on an index that is not (n)
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// One element of axis dim for each element of index:  y[o, j, i] = x[o, index[o, j, i], i].
///
/// Shapes   x (... D ...), index (... n ...), equal in every other axis  ->  (... n ...)
/// Dtypes   any
/// Saves    index
/// Throws   Error on an index out of [0, D) and on other shapes
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// A copy of x with every element of source added:  y[o, index[o, j, i], i] += source[o, j, i].
///
/// Shapes   x (... D ...), index and source (... n ...), equal in every other axis  ->  (... D ...)
/// Dtypes   f32, f64, bf16, f16 (summed in f32), i32, i64, u8; x and source alike
/// Saves    index
/// Throws   Error on an index out of [0, D), on other shapes and on mixed dtypes
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// A copy of x with row i of source added to row index[i] of axis dim.
///
/// Shapes   x (... D ...), index (n), source (... n ...)  ->  (... D ...)
/// Dtypes   f32, f64, bf16, f16 (summed in f32), i32, i64, u8; x and source alike
/// Saves    index
/// Throws   Error on an index out of [0, D), on other shapes and on mixed dtypes
Tensor index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// A copy of x with every element of source written to it:  y[o, index[o, j, i], i] =
/// source[o, j, i]. Where an index occurs several times the last element is kept and gets the
/// gradient.
///
/// Shapes   x (... D ...), index and source (... n ...), equal in every other axis  ->  (... D ...)
/// Dtypes   any; x and source alike
/// Saves    index
/// Throws   Error on an index out of [0, D), on other shapes and on mixed dtypes
Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// Rows of a table selected by ids. The gradient of the table is dense.
///
/// Shapes   weight (V, C), ids (...)  ->  (..., C)
/// Dtypes   weight f32, f64, bf16, f16 (its gradient is summed in f32)
/// Saves    ids
/// Throws   Error "embedding: ids must be in [0, V), got i", and on a weight that is not (V, C)
Tensor embedding(const Tensor& weight, const Tensor& ids);
/// 1 at the id's position, 0 elsewhere.
///
/// Shapes   ids (...)  ->  (..., classes)
/// Dtypes   the result any
/// Throws   Error on an id out of [0, classes), and on classes < 1
Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype = DType::f32);
/// The lower triangle of the last two axes: zeros elements with column - row > diagonal.
///
/// Shapes   x (..., R, C)  ->  (..., R, C)
/// Dtypes   any
/// Throws   Error when x has fewer than 2 axes
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
/// x with zeros below the diagonal of its last two axes: keeps column - row >= diagonal.
///
/// Shapes   x (..., R, C)  ->  (..., R, C)
/// Dtypes   any
/// Throws   Error when x has fewer than 2 axes
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);

}  // namespace weft
