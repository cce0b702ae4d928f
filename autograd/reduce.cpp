// Reductions: sum, mean, sum_to; max and min, and their indices.
#include "weft/autograd/reduce.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/reduce_common.h"
#include "weft/autograd/view.h"

namespace weft {

using namespace detail;

namespace {

DType sum_dtype(DType t) {
  if (!is_floating(t)) return DType::i64;
  return is_compute(t) ? t : DType::f32;
}

void check_not_empty(const char* op, const Axes& axes, const Tensor& x) {
  check(axes.extent.reduced > 0, "{}: there is no element to choose, got shape {}", op, x.shape());
}

Tensor first_index(const Tensor& rows, const Axes& axes, bool largest, const Shape& shape) {
  Tensor index = Tensor::empty(shape, DType::i64, rows.device());
  dispatch<cpu::arg_reduce, cuda::arg_reduce>(rows, largest, axes.extent, index);
  return index;
}

Tensor extreme(const char* name, const Tensor& x, const Axes& axes, bool largest, bool keepdim,
               int dim) {
  if (has_8_bits(x)) return extreme(name, cast(x, DType::f32), axes, largest, keepdim, dim);
  check_numeric(name, x.dtype());
  check_not_empty(name, axes, x);
  const Tensor rows = as_rows(x, axes);
  Tensor y = run_reduce(rows, largest ? ReduceOp::max : ReduceOp::min, axes,
                        axes.result_shape(x.shape(), keepdim), x.dtype());
  if (recording(x)) {
    const Shape kept = axes.result_shape(x.shape(), true);
    const Tensor index = first_index(rows, axes, largest, kept);
    Tape::record(name, {&x}, {&y},
                 [s = save(index, "index"), shape = x.shape(), kept, dim](Backward& g) {
                   const Tensor& dy = g.dy();
                   const Tensor zeros = Tensor::zeros(shape, dy.dtype(), dy.device());
                   if (dim >= 0) {
                     g.add(0, scatter_add(zeros, dim, s.get(), reshape(dy, kept)));
                     return;
                   }
                   const Tensor flat = scatter_add(reshape(zeros, {shape.numel()}), 0,
                                                   reshape(s.get(), {1}), reshape(dy, {1}));
                   g.add(0, reshape(flat, shape));
                 });
  }
  return y;
}

Tensor extreme(const char* name, const Tensor& x, int dim, bool largest, bool keepdim) {
  check_tensor(name, "x", x);
  const Axes axes(name, x.shape(), {dim});
  return extreme(name, x, axes, largest, keepdim,
                 x.ndim() ? normalize_dim(name, dim, x.ndim()) : -1);
}

Tensor place(const char* name, const Tensor& x, int dim, bool largest, bool keepdim) {
  check_tensor(name, "x", x);
  if (has_8_bits(x)) return place(name, cast(x, DType::f32), dim, largest, keepdim);
  const Axes axes(name, x.shape(), {dim});
  check_numeric(name, x.dtype());
  check_not_empty(name, axes, x);
  return first_index(as_rows(x, axes), axes, largest, axes.result_shape(x.shape(), keepdim));
}

Tensor scaled_sum(const char* name, const Tensor& x, const Axes& axes, const Shape& shape,
                  double scale) {
  const Tensor read = has_8_bits(x) ? cast(x, DType::f32) : x;
  Tensor y =
      run_reduce(as_rows(read, axes), ReduceOp::sum, axes, shape, sum_dtype(x.dtype()), {}, scale);
  if (recording(x))
    Tape::record(name, {&x}, {&y},
                 [from = x.shape(), kept = axes.result_shape(x.shape(), true), scale](Backward& g) {
                   const Tensor dy = reshape(g.dy(), kept);
                   g.add(0, expand(scale == 1 ? dy : mul(dy, scale), from));
                 });
  return y;
}

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  check_tensor("sum", "x", x);
  const Axes axes("sum", x.shape(), dims);
  return scaled_sum("sum", x, axes, axes.result_shape(x.shape(), keepdim), 1);
}

Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  check_tensor("mean", "x", x);
  const Axes axes("mean", x.shape(), dims);
  if (!has_8_bits(x)) check_floating("mean", x.dtype());
  return scaled_sum("mean", x, axes, axes.result_shape(x.shape(), keepdim),
                    1.0 / static_cast<double>(axes.extent.reduced));
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  check_tensor("sum_to", "x", x);
  if (x.shape() == shape) return cast(x, sum_dtype(x.dtype()));
  const int front = x.ndim() - shape.size();
  Axes axes;
  bool fits = front >= 0;
  for (int i = 0; fits && i < x.ndim(); ++i) {
    const std::int64_t want = i < front ? 1 : shape[i - front];
    fits = want == x.dim(i) || want == 1;
    if (i < front || want != x.dim(i)) axes.reduce(i);
  }
  check(fits, "sum_to: shape must broadcast to x's shape {}, got {}", x.shape(), shape);
  axes.finish(x.shape());
  return scaled_sum("sum_to", x, axes, shape, 1);
}

Tensor max(const Tensor& x) {
  check_tensor("max", "x", x);
  return extreme("max", x, Axes("max", x.shape(), {}), true, false, -1);
}
Tensor max(const Tensor& x, int dim, bool keepdim) { return extreme("max", x, dim, true, keepdim); }
Tensor min(const Tensor& x) {
  check_tensor("min", "x", x);
  return extreme("min", x, Axes("min", x.shape(), {}), false, false, -1);
}
Tensor min(const Tensor& x, int dim, bool keepdim) {
  return extreme("min", x, dim, false, keepdim);
}
Tensor argmax(const Tensor& x, int dim, bool keepdim) {
  return place("argmax", x, dim, true, keepdim);
}
Tensor argmin(const Tensor& x, int dim, bool keepdim) {
  return place("argmin", x, dim, false, keepdim);
}

}  // namespace weft
