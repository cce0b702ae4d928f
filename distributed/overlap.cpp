#include "weft/distributed/overlap.h"

#include <algorithm>
#include <vector>

#include "weft/autograd/linear.h"
#include "weft/autograd/linear_common.h"
#include "weft/autograd/operand.h"
#include "weft/core/error.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/sum_ranks.h"

namespace weft::distributed {
namespace {

using weft::detail::as_matrix;

// The pipeline has two stages, because each product packs its operands again: four stages of a
// fourth of the columns took 9 to 16 % longer than one product. The second stage, whose transfer is
// exposed, has 1 / kLastPart of the columns.
constexpr std::int64_t kLastPart = 4;

void check_operands(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  weft::detail::check_tensor(op, "x", x);
  weft::detail::check_tensor(op, "weight", weight);
  check(is_compute(x.dtype()), "{}: x must have dtype f32, f64, bf16 or f16, got {}", op,
        x.dtype());
  check(x.ndim() >= 2, "{}: x must have at least 2 axes, got shape {}", op, x.shape());
  check(weight.ndim() == 2 && weight.dim(1) == x.dim(-1),
        "{}: weight must have shape [N, {}] (last axis of x {}), got {}", op, x.dim(-1), x.shape(),
        weight.shape());
  check(weight.dtype() == x.dtype(), "{}: weight must have the dtype of x, {}, got {}", op,
        x.dtype(), weight.dtype());
  if (!bias.defined()) return;
  const Shape n{weight.dim(0)};
  check(bias.shape() == n && bias.dtype() == x.dtype(),
        "{}: bias must be {} with shape {} (rows of weight {}), got {} {}", op, x.dtype(), n,
        weight.shape(), bias.dtype(), bias.shape());
}

// Rows [first, first + count) of a contiguous matrix.
Tensor rows(const Tensor& t, std::int64_t first, std::int64_t count) {
  return t.alias({count, t.dim(1)}, {t.dim(1), 1}, first * t.dim(1));
}

Shape shape_with(const Tensor& x, std::int64_t rows, std::int64_t columns) {
  Shape shape = x.shape();
  for (int i = 0; i + 1 < shape.size(); ++i) shape[i] = 1;
  shape[shape.size() - 2] = rows;
  shape[shape.size() - 1] = columns;
  return shape;
}

/// Fills all (ranks n, C) with the rows of every rank; `own` holds this rank's rows. Calls use(c)
/// when the rows of rank c have arrived; the next rows are in flight meanwhile.
template <class F>
void ring_gather(const Tensor& all, const Tensor& own, ProcessGroup& group, F&& use) {
  const std::int64_t n = own.dim(0);
  const int ranks = group.size(), rank = group.rank();
  rows(all, rank * n, n).copy_(own);
  for (int i = 0; i < ranks; ++i) {
    const int here = (rank - i + ranks) % ranks, next = (here - 1 + ranks) % ranks;
    Work arrival;
    if (i + 1 < ranks)
      arrival = group.exchange(rows(all, next * n, n), (rank - 1 + ranks) % ranks,
                               rows(all, here * n, n), (rank + 1) % ranks);
    use(here);
    arrival.wait();
  }
}

/// out (n, N): this rank's rows of the sum over ranks of x weight^T.
void ring_scatter(const Tensor& x, const Tensor& weight, ProcessGroup& group, const Tensor& out) {
  const int ranks = group.size(), rank = group.rank();
  const std::int64_t n = out.dim(0);
  // The products sent to each rank, and those received from it; this rank's own product goes to
  // `come`.
  const Tensor sent = Tensor::empty({x.dim(0), out.dim(1)}, x.dtype(), x.device());
  const Tensor come = empty_like(sent);
  const auto multiply = [&](int of, const Tensor& into) {
    gemm(rows(x, of * n, n), weft::transposed(weight), rows(into, of * n, n));
  };
  Work on_its_way;
  for (int i = 1; i < ranks; ++i) {
    const int to = (rank + i) % ranks, from = (rank - i + ranks) % ranks;
    multiply(to, sent);
    on_its_way.wait();
    on_its_way = group.exchange(rows(come, from * n, n), from, rows(sent, to * n, n), to);
  }
  multiply(rank, come);
  on_its_way.wait();
  if (out.is_meta()) return;
  thread_local std::vector<const void*> parts;  // static for its memory only
  parts.clear();
  for (int r = 0; r < ranks; ++r) parts.push_back(rows(come, r * n, n).raw());
  combine_ranks(out.dtype(), Reduce::sum, out.raw(), parts, out.numel());
}

/// The same in two stages, most columns first.
void pipeline_scatter(const Tensor& x, const Tensor& weight, ProcessGroup& group,
                      const Tensor& out) {
  const std::int64_t columns = weight.dim(0), last = columns / kLastPart;
  struct Part {
    std::int64_t first, count;
    Tensor product = {}, sum = {};
    Work scattered = {};
  } parts[] = {{0, columns - last}, {columns - last, last}};
  for (Part& p : parts) {
    p.product = Tensor::empty({x.dim(0), p.count}, x.dtype(), x.device());
    p.sum = Tensor::empty({out.dim(0), p.count}, x.dtype(), x.device());
    gemm(x, weft::transposed(rows(weight, p.first, p.count)), p.product);
    p.scattered = group.reduce_scatter(p.sum, p.product);
  }
  for (Part& p : parts) {
    p.scattered.wait();
    narrow(out, 1, p.first, p.count).copy_(p.sum);
  }
}

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

}  // namespace

Tensor gather_linear(const Tensor& x, const Tensor& weight_in, const Tensor& bias,
                     ProcessGroup& group) {
  check_operands("gather_linear", x, weight_in, bias);
  if (group.size() == 1) return linear(x, weight_in, bias);
  const Tensor in = contiguous(x), weight = contiguous(weight_in);
  const std::int64_t n = in.numel() / std::max<std::int64_t>(1, in.dim(-1));
  const std::int64_t all = n * group.size(), columns = weight.dim(0);
  Tensor y = Tensor::empty(shape_with(in, all, columns), in.dtype(), in.device());
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
  check_operands("linear_scatter", x, weight_in, {});
  if (group.size() == 1) return linear(x, weight_in);
  if (form == Overlap::none) return reduce_scatter_rows(linear(x, weight_in), group);
  const Tensor in = contiguous(x), weight = contiguous(weight_in);
  const Tensor matrix = as_matrix(in).detach();
  check(matrix.dim(0) % group.size() == 0,
        "linear_scatter: the {} rows of x {} do not divide among {} ranks", matrix.dim(0),
        x.shape(), group.size());
  const std::int64_t n = matrix.dim(0) / group.size(), columns = weight.dim(0);
  Tensor y = Tensor::empty(shape_with(in, n, columns), in.dtype(), in.device());
  {
    const NoGradGuard quiet;
    const Tensor out = y.alias({n, columns}, {columns, 1}, 0);
    if (form == Overlap::ring && !in.device().is_gpu())  // ring_scatter adds on the host
      ring_scatter(matrix, weight, group, out);
    else
      pipeline_scatter(matrix, weight, group, out);
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
