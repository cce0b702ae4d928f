#include "weft/autograd/indexing.h"

#include <algorithm>
#include <cstdint>

#include "weft/autograd/axis.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/kernels/indexing.h"

namespace weft {
namespace {

using detail::axis_of;
using detail::check_tensor;

// Checks dtype, device and range of the indices before a kernel uses them. The host does not wait
// for a GPU: a bad index throws at the next synchronization.
void check_index(const char* op, const char* label, const Tensor& index, std::int64_t limit,
                 const Tensor& x) {
  check(index.dtype() == DType::i32 || index.dtype() == DType::i64,
        "{}: {} must be i32 or i64, got {}", op, label, index.dtype());
  check(index.device() == x.device(), "{}: {} must be on {}, got {}", op, label, x.device(),
        index.device());
  const Device device = index.device();
  const Tensor bad = device.is_gpu() ? Tensor() : Tensor::empty({2}, DType::i64, device);
  dispatch<cpu::find_bad_index, cuda::find_bad_index>(index, op, label, limit, bad);
  if (!bad.defined() || bad.is_meta()) return;
  const std::int64_t* result = bad.data<std::int64_t>();
  check(result[0] == 0, "{}: {} must be in [0, {}), got {}", op, label, limit, result[1]);
}

// index must match x in every axis but dim.
void check_beside(const char* op, const Tensor& x, int dim, const Tensor& index) {
  check_tensor(op, "index", index);
  Shape like = index.shape();
  if (like.size() == x.ndim()) like[dim] = x.dim(dim);
  check(like == x.shape(), "{}: index must have the shape {} of x but for axis {}, got {}", op,
        x.shape(), dim, index.shape());
}

// Adds the rows of source to y.
void add_rows(const Tensor& source, const Tensor& index, int dim, const Tensor& y) {
  const std::int64_t n = index.numel();
  Tensor scratch;
  if (source.device().is_gpu()) {
    check(n <= INT32_MAX && y.dim(dim) < INT32_MAX,
          "index_add: on a GPU axis {} and the index must be shorter than {}, got {} and {}", dim,
          INT32_MAX, y.dim(dim), n);
    scratch = Tensor::empty({index_add_scratch(n)}, DType::i32, source.device());
  }
  dispatch<cpu::index_add, cuda::index_add>(contiguous(source), index, dim, scratch, y);
}

// Adding row after row in 16 bits loses precision. The GPU kernel accumulates in f32.
bool needs_wider_sums(const Tensor& source) {
  return is_half(source.dtype()) && !source.device().is_gpu();
}

// Backward of index_select, and an op itself: adds source's rows to zeros of shape `whole`.
Tensor rows_added(const Tensor& source, int dim, const Tensor& index, const Shape& whole) {
  if (needs_wider_sums(source))
    return cast(rows_added(cast(source, DType::f32), dim, index, whole), source.dtype());
  Tensor y = Tensor::zeros(whole, source.dtype(), source.device());
  add_rows(source, index, dim, y);
  if (recording(source))
    Tape::record("index_add", {&source}, {&y}, [dim, i = save(index, "index")](Backward& b) {
      b.add(0, index_select(b.dy(), dim, i.get()));
    });
  return y;
}

// `of`: what has this shape.
void check_source(const char* op, const Tensor& x, const Shape& shape, const char* of,
                  const Tensor& source) {
  check_tensor(op, "source", source);
  check(source.shape() == shape, "{}: source must have the shape {} of {}, got {}", op, shape, of,
        source.shape());
  check(source.dtype() == x.dtype() && source.device() == x.device(),
        "{}: source must be {} on {}, got {} on {}", op, x.dtype(), x.device(), source.dtype(),
        source.device());
}

// A copy of x to which one node of the tape records the writes that follow.
Tensor unrecorded_copy(const Tensor& x) {
  const NoGradGuard off;
  return clone(x);
}

// 1 where an element of source, by its position along the axis, is the last one written to its
// place in x's shape.
Tensor is_kept(const Shape& whole, int dim, const Tensor& index) {
  const NoGradGuard off;
  const std::int64_t n = index.dim(dim);
  Shape line{n};
  for (int i = dim + 1; i < index.ndim(); ++i) line.push_back(1);
  const Tensor along = Tensor::arange(0, static_cast<double>(n), 1, DType::i64, index.device());
  const Tensor place = contiguous(expand(reshape(along, line), index.shape()));
  const Tensor last = scatter(Tensor::zeros(whole, DType::i64, index.device()), dim, index, place);
  return eq(gather(last, dim, index), place);
}

}  // namespace

Tensor index_select(const Tensor& x, int dim, const Tensor& index) {
  dim = axis_of("index_select", x, dim);
  check_tensor("index_select", "index", index);
  check(index.ndim() == 1, "index_select: index must have shape (n), got {}", index.shape());
  const Tensor id = contiguous(index);
  check_index("index_select", "index", id, x.dim(dim), x);
  Shape shape = x.shape();
  shape[dim] = id.numel();
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  dispatch<cpu::index_select, cuda::index_select>(contiguous(x), id, dim, y);
  if (recording(x))
    Tape::record("index_select", {&x}, {&y},
                 [dim, i = save(id, "index"), whole = x.shape()](Backward& b) {
                   b.add(0, rows_added(b.dy(), dim, i.get(), whole));
                 });
  return y;
}

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  dim = axis_of("gather", x, dim);
  check_beside("gather", x, dim, index);
  const Tensor id = contiguous(index);
  check_index("gather", "index", id, x.dim(dim), x);
  Tensor y = Tensor::empty(id.shape(), x.dtype(), x.device());
  dispatch<cpu::gather, cuda::gather>(contiguous(x), id, dim, y);
  if (recording(x))
    Tape::record("gather", {&x}, {&y},
                 [dim, i = save(id, "index"), whole = x.shape()](Backward& b) {
                   const Tensor& dy = b.dy();
                   const Tensor zero = Tensor::zeros(whole, dy.dtype(), dy.device());
                   b.add(0, scatter_add(zero, dim, i.get(), dy));
                 });
  return y;
}

Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  dim = axis_of("scatter_add", x, dim);
  check_beside("scatter_add", x, dim, index);
  check_source("scatter_add", x, index.shape(), "index", source);
  if (is_half(x.dtype()))
    return cast(scatter_add(cast(x, DType::f32), dim, index, cast(source, DType::f32)), x.dtype());
  dispatch_numeric(
      x.dtype(), []<class T>() {}, "scatter_add");
  const Tensor id = contiguous(index);
  check_index("scatter_add", "index", id, x.dim(dim), x);
  Tensor y = unrecorded_copy(x);
  dispatch<cpu::scatter_add, cuda::scatter_add>(contiguous(source), id, dim, y);
  if (recording(x, source))
    Tape::record("scatter_add", {&x, &source}, {&y}, [dim, i = save(id, "index")](Backward& b) {
      if (b.needs(0)) b.add(0, b.dy());
      if (b.needs(1)) b.add(1, gather(b.dy(), dim, i.get()));
    });
  return y;
}

Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  dim = axis_of("scatter", x, dim);
  check_beside("scatter", x, dim, index);
  check_source("scatter", x, index.shape(), "index", source);
  const Tensor id = contiguous(index);
  check_index("scatter", "index", id, x.dim(dim), x);
  Tensor y = unrecorded_copy(x);
  dispatch<cpu::scatter, cuda::scatter>(contiguous(source), id, dim, y);
  if (recording(x, source))
    Tape::record("scatter", {&x, &source}, {&y},
                 [dim, i = save(id, "index"), whole = x.shape()](Backward& b) {
                   const Tensor& dy = b.dy();
                   const Tensor zero = Tensor::zeros({}, dy.dtype(), dy.device());
                   if (b.needs(0))
                     b.add(0, scatter(dy, dim, i.get(), expand(zero, i.get().shape())));
                   if (b.needs(1))
                     b.add(1, where(is_kept(whole, dim, i.get()), gather(dy, dim, i.get()), zero));
                 });
  return y;
}

Tensor index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  dim = axis_of("index_add", x, dim);
  check_tensor("index_add", "index", index);
  check(index.ndim() == 1, "index_add: index must have shape (n), got {}", index.shape());
  Shape shape = x.shape();
  shape[dim] = index.numel();
  check_source("index_add", x, shape, "x with one row for each index", source);
  if (is_half(x.dtype()))
    return cast(index_add(cast(x, DType::f32), dim, index, cast(source, DType::f32)), x.dtype());
  dispatch_numeric(
      x.dtype(), []<class T>() {}, "index_add");
  const Tensor id = contiguous(index);
  check_index("index_add", "index", id, x.dim(dim), x);
  Tensor y = unrecorded_copy(x);
  add_rows(source, id, dim, y);
  if (recording(x, source))
    Tape::record("index_add", {&x, &source}, {&y}, [dim, i = save(id, "index")](Backward& b) {
      if (b.needs(0)) b.add(0, b.dy());
      if (b.needs(1)) b.add(1, index_select(b.dy(), dim, i.get()));
    });
  return y;
}

Tensor embedding(const Tensor& weight, const Tensor& ids) {
  check_tensor("embedding", "weight", weight);
  check_tensor("embedding", "ids", ids);
  check(weight.ndim() == 2, "embedding: weight must have shape (V, C), got {}", weight.shape());
  dispatch_floating(
      weight.dtype(), []<class T>() {}, "embedding");
  const Tensor id = contiguous(ids);
  check_index("embedding", "ids", id, weight.dim(0), weight);
  Shape shape = ids.shape();
  shape.push_back(weight.dim(1));
  Tensor y = Tensor::empty(shape, weight.dtype(), weight.device());
  const Tensor flat = id.alias({id.numel()}, {1}, 0);
  dispatch<cpu::index_select, cuda::index_select>(
      contiguous(weight), flat, 0, y.alias({id.numel(), weight.dim(1)}, {weight.dim(1), 1}, 0));
  if (recording(weight))
    Tape::record("embedding", {&weight}, {&y},
                 [i = save(flat, "ids"), whole = weight.shape()](Backward& b) {
                   const Tensor rows = reshape(b.dy(), {i.get().numel(), whole[1]});
                   // Where a tied head has written its gradient already, only the rows in use
                   // change.
                   const DType dtype = b.sum_dtype(0, rows.dtype());
                   const GradientSum sum = dtype == rows.dtype() && needs_wider_sums(rows)
                                               ? GradientSum{}
                                               : b.accumulator(0, whole, dtype);
                   if (!sum.to.defined()) return b.add(0, rows_added(rows, 0, i.get(), whole));
                   if (!sum.adds) dispatch<cpu::fill, cuda::fill>(sum.to, 0.0);
                   add_rows(needs_wider_sums(rows) ? cast(rows, dtype) : rows, i.get(), 0, sum.to);
                 });
  return y;
}

Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype) {
  check_tensor("one_hot", "ids", ids);
  check(classes >= 1, "one_hot: classes must be at least 1, got {}", classes);
  const Tensor id = contiguous(ids);
  check_index("one_hot", "ids", id, classes, ids);
  Shape shape = ids.shape();
  shape.push_back(classes);
  const Tensor y = Tensor::zeros(shape, dtype, ids.device());
  dispatch<cpu::one_hot, cuda::one_hot>(id, y);
  return y;
}

Tensor tril(const Tensor& x, std::int64_t diagonal) {
  check_tensor("tril", "x", x);
  check(x.ndim() >= 2, "tril: x must have at least 2 axes, got shape {}", x.shape());
  Tensor y = empty_like(x);
  dispatch<cpu::tril, cuda::tril>(contiguous(x), diagonal, y);
  if (recording(x))
    Tape::record("tril", {&x}, {&y}, [diagonal](Backward& b) { b.add(0, tril(b.dy(), diagonal)); });
  return y;
}

Tensor triu(const Tensor& x, std::int64_t diagonal) {
  check_tensor("triu", "x", x);
  check(x.ndim() >= 2, "triu: x must have at least 2 axes, got shape {}", x.shape());
  const Tensor ones = Tensor::ones({x.dim(-2), x.dim(-1)}, DType::boolean, x.device());
  const std::int64_t below = std::max(diagonal, -x.dim(-2)) - 1;  // any lower one is as low
  return where(tril(ones, below), Tensor::zeros({}, x.dtype(), x.device()), x);
}

}  // namespace weft
