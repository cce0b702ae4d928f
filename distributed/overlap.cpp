#include "weft/distributed/overlap.h"

#include <algorithm>

#include "weft/autograd/linear.h"
#include "weft/autograd/linear_common.h"
#include "weft/core/error.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/row_ring.h"

namespace weft::distributed {
namespace {

using detail::ring_gather;
using detail::rows;
using weft::detail::as_matrix;

void backward_of_gather(Backward& b, const Tensor& x_in, const Tensor& weight,
                        ProcessGroup& group) {
  const Tensor x = as_matrix(x_in), dy = contiguous(as_matrix(b.dy()));
  const std::int64_t all = x.dim(0) * group.size();
  const Tensor gathered = Tensor::empty({all, x.dim(1)}, x.dtype(), x.device());
  Work arrival = group.all_gather(gathered, x);
  const Tensor partial = empty_like(gathered), dx = empty_like(x);
  gemm(dy, weight, partial);
  arrival.wait();
  Work scattered = group.reduce_scatter(dx, partial);
  weft::detail::add_linear_gradients(b, 1, 2, dy, gathered);
  scattered.wait();
  if (b.needs(0)) b.add(0, reshape(dx, x_in.shape()));
}

void backward_of_scatter(Backward& b, const Tensor& x_in, const Tensor& weight,
                         ProcessGroup& group) {
  const Tensor x = contiguous(as_matrix(x_in)), own = contiguous(as_matrix(b.dy()));
  const std::int64_t n = own.dim(0);
  const Tensor dy = Tensor::empty({x.dim(0), own.dim(1)}, x.dtype(), x.device());
  const Tensor dx = empty_like(x);
  ring_gather(dy, own, group, [&](int c) { gemm(rows(dy, c * n, n), weight, rows(dx, c * n, n)); });
  weft::detail::add_linear_gradients(b, 1, 2, dy, x);
  if (b.needs(0)) b.add(0, reshape(dx, x_in.shape()));
}

void backward_of_copy(Backward& b, const Tensor& x_in, const Tensor& weight, ProcessGroup& group) {
  const Tensor x = contiguous(as_matrix(x_in)), dy = contiguous(as_matrix(b.dy()));
  Tensor dx;
  Work sum;
  if (b.needs(0)) {
    dx = empty_like(x);
    gemm(dy, weight, dx);
    sum = group.all_reduce(dx);
  }
  weft::detail::add_linear_gradients(b, 1, 2, dy, x);
  if (!b.needs(0)) return;
  sum.wait();
  b.add(0, reshape(dx, x_in.shape()));
}

}  // namespace

Tensor copy_linear(const Tensor& x, const Tensor& weight_in, const Tensor& bias,
                   ProcessGroup& group) {
  detail::check_row_operands("copy_linear", x, weight_in, bias);
  if (group.size() == 1) return linear(x, weight_in, bias);
  const Tensor weight = contiguous(weight_in);
  Shape shape = x.shape();
  shape[shape.size() - 1] = weight.dim(0);
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  {
    const NoGradGuard quiet;
    gemm_bias(as_matrix(x), weight, bias, as_matrix(y));
  }
  if (recording(x, weight, bias))
    Tape::record("copy_linear", {&x, &weight, &bias}, {&y},
                 [sx = save(x, "x"), sw = save(weight, "weight"), g = &group](Backward& b) {
                   b.once_differentiable();
                   backward_of_copy(b, sx.get(), sw.get(), *g);
                 });
  return y;
}

Tensor gather_linear(const Tensor& x, const Tensor& weight_in, const Tensor& bias,
                     ProcessGroup& group) {
  detail::check_row_operands("gather_linear", x, weight_in, bias);
  if (group.size() == 1) return linear(x, weight_in, bias);
  const Tensor in = contiguous(x), weight = contiguous(weight_in);
  const std::int64_t n = in.numel() / std::max<std::int64_t>(1, in.dim(-1));
  const std::int64_t all = n * group.size(), columns = weight.dim(0);
  Tensor y = Tensor::empty(detail::shape_with(in, all, columns), in.dtype(), in.device());
  {
    const NoGradGuard quiet;
    const Tensor out = y.alias({all, columns}, {columns, 1}, 0), own = as_matrix(in).detach();
    const Tensor gathered = Tensor::empty({all, in.dim(-1)}, in.dtype(), in.device());
    ring_gather(gathered, own, group, [&](int c) {
      gemm_bias(rows(gathered, c * n, n), weight, bias, rows(out, c * n, n));
    });
  }
  if (recording(in, weight, bias))
    Tape::record("gather_linear", {&in, &weight, &bias}, {&y},
                 [sx = save(in, "x"), sw = save(weight, "weight"), g = &group](Backward& b) {
                   b.once_differentiable();
                   backward_of_gather(b, sx.get(), sw.get(), *g);
                 });
  return y;
}

Tensor linear_scatter(const Tensor& x, const Tensor& weight_in, ProcessGroup& group, Overlap form) {
  detail::check_row_operands("linear_scatter", x, weight_in, {});
  if (group.size() == 1) return linear(x, weight_in);
  if (form == Overlap::none) return reduce_scatter_rows(linear(x, weight_in), group);
  const Tensor in = contiguous(x), weight = contiguous(weight_in);
  const Tensor matrix = as_matrix(in).detach();
  check(matrix.dim(0) % group.size() == 0,
        "linear_scatter: the {} rows of x {} do not divide among {} ranks", matrix.dim(0),
        x.shape(), group.size());
  const std::int64_t n = matrix.dim(0) / group.size(), columns = weight.dim(0);
  Tensor y = Tensor::empty(detail::shape_with(in, n, columns), in.dtype(), in.device());
  {
    const NoGradGuard quiet;
    const Tensor out = y.alias({n, columns}, {columns, 1}, 0);
    if (form == Overlap::ring && !in.device().is_gpu())  // ring_scatter adds on the host
      detail::ring_scatter(out, group,
                           [&](std::int64_t first, std::int64_t count, const Tensor& into) {
                             gemm(rows(matrix, first, count), weft::transposed(weight), into);
                           });
    else
      detail::pipeline_scatter(out, group, 1,
                               [&](std::int64_t first, std::int64_t count, const Tensor& into) {
                                 gemm(matrix, weft::transposed(rows(weight, first, count)), into);
                               });
  }
  const Tensor no_bias;
  if (recording(in, weight))
    Tape::record("linear_scatter", {&in, &weight, &no_bias}, {&y},
                 [sx = save(in, "x"), sw = save(weight, "weight"), g = &group](Backward& b) {
                   b.once_differentiable();
                   backward_of_scatter(b, sx.get(), sw.get(), *g);
                 });
  return y;
}

}  // namespace weft::distributed
