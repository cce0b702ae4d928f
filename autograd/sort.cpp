#include "weft/autograd/sort.h"

#include "weft/autograd/axis.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/sort.h"

namespace weft {
namespace {

// x with axis dim last and contiguous rows; the tape does not record it.
Tensor rows_of(const char* op, const Tensor& x, int dim) {
  dispatch_numeric(
      x.dtype(), []<class T>() {}, op);
  return contiguous(transpose(x.detach(), dim, -1));
}

Tensor sorted_order(const Tensor& rows, bool descending) {
  const Tensor order = Tensor::empty(rows.shape(), DType::i64, rows.device());
  const Tensor scratch = empty_like(order);
  dispatch<cpu::sort, cuda::sort>(rows, descending, scratch, order);
  return order;
}

// The order has no gradient; gathering the values does.
ValuesIndices picked(const Tensor& x, int dim, const Tensor& order) {
  const Tensor indices = contiguous(transpose(order, dim, -1));
  return {gather(x, dim, indices), indices};
}

}  // namespace

ValuesIndices topk(const Tensor& x, std::int64_t k, int dim) {
  dim = detail::axis_of("topk", x, dim);
  check(k >= 1 && k <= x.dim(dim), "topk: k must be in [1, {}], got {}", x.dim(dim), k);
  const Tensor rows = rows_of("topk", x, dim);
  if (x.device().is_gpu() && k > kMaxTopk)
    return picked(x, dim, sorted_order(rows, true).narrow(-1, 0, k));
  Shape shape = rows.shape();
  shape[shape.size() - 1] = k;
  const Tensor order = Tensor::empty(shape, DType::i64, x.device());
  dispatch<cpu::topk, cuda::topk>(rows, order);
  return picked(x, dim, order);
}

Tensor argsort(const Tensor& x, int dim, bool descending) {
  dim = detail::axis_of("argsort", x, dim);
  const Tensor order = sorted_order(rows_of("argsort", x, dim), descending);
  return contiguous(transpose(order, dim, -1));
}

ValuesIndices sort(const Tensor& x, int dim, bool descending) {
  dim = detail::axis_of("sort", x, dim);
  const Tensor rows = rows_of("sort", x, dim);
  return picked(x, dim, sorted_order(rows, descending));
}

}  // namespace weft
