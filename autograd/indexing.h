#pragma once
#include <utility>

#include "weft/core/tensor.h"

namespace weft {

Tensor index_select(const Tensor& x, int dim, const Tensor& index);
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// A copy of x with source added at index along dim.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// Rows of weight (V, C) chosen by ids (...): (..., C).
Tensor embedding(const Tensor& weight, const Tensor& ids);
Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype = DType::f32);
struct ValuesIndices {
  Tensor values, indices;
};
ValuesIndices topk(const Tensor& x, std::int64_t k, int dim = -1);
ValuesIndices sort(const Tensor& x, int dim = -1, bool descending = false);
/// Keeps the lower triangle of the last two axes; `diagonal` moves its edge.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);

}  // namespace weft
