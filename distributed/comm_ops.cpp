#include "weft/distributed/comm_ops.h"

#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"

namespace weft::distributed {
namespace {

void check_operand(const char* op, const Tensor& x) {
  detail::check_tensor(op, "x", x);
  check(is_compute(x.dtype()), "{}: x must have dtype f32, f64, bf16 or f16, got {}", op,
        x.dtype());
}

std::int64_t row_count(const char* op, const Tensor& x) {
  check_operand(op, x);
  check(x.ndim() >= 2, "{}: x must have at least 2 axes, got shape {}", op, x.shape());
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < x.ndim(); ++i) rows *= x.dim(i);
  return rows;
}

std::int64_t share(const char* op, const Tensor& x, const ProcessGroup& group) {
  const std::int64_t rows = row_count(op, x);
  check(rows % group.size() == 0, "{}: the {} rows of x {} do not divide among {} ranks", op, rows,
        x.shape(), group.size());
  return rows / group.size();
}

Shape with_rows(const Tensor& x, std::int64_t rows) {
  Shape shape = x.shape();
  for (int i = 0; i + 1 < shape.size(); ++i) shape[i] = 1;
  shape[shape.size() - 2] = rows;
  return shape;
}

// The layout of collectives: rows along the first axis.
Tensor matrix(const Tensor& x, std::int64_t rows) {
  return x.alias({rows, x.dim(-1)}, {x.dim(-1), 1}, 0);
}

// Whether no other handle, owner or stream can see these values.
bool is_alone(const Tensor& x) {
  const Storage& memory = *x.storage();
  return x.is_contiguous() && x.impl()->refs.load() == 1 && memory.refs.load() == 1 &&
         !memory.deleter && memory.used_on.empty();
}

Tensor gathered(const char* op, const Tensor& x, ProcessGroup& group) {
  const std::int64_t rows = row_count(op, x), all = rows * group.size();
  Tensor y = Tensor::empty(with_rows(x, all), x.dtype(), x.device());
  group.at_once().all_gather(matrix(y, all), matrix(x, rows)).wait();
  return y;
}

}  // namespace

Tensor copy_to_group(const Tensor& x, ProcessGroup& group) {
  check_operand("copy_to_group", x);
  if (group.size() == 1) return x;
  Tensor y = x.alias(x.shape(), x.strides(), 0);
  if (recording(x))
    Tape::record("copy_to_group", {&x}, {&y},
                 [g = &group](Backward& b) { b.add(0, reduce_from_group(b.dy(), *g)); });
  return y;
}

Tensor reduce_from_group(Tensor x, ProcessGroup& group) {
  check_operand("reduce_from_group", x);
  if (group.size() == 1) return x;
  Tensor y;
  if (is_alone(x)) {
    y = x.alias(x.shape(), x.strides(), 0);
  } else {
    const NoGradGuard quiet;
    y = x.clone();
  }
  group.at_once().all_reduce(y).wait();
  if (recording(x))
    Tape::record("reduce_from_group", {&x}, {&y},
                 [g = &group](Backward& b) { b.add(0, copy_to_group(b.dy(), *g)); });
  return y;
}

Tensor gather_rows(const Tensor& x, ProcessGroup& group) {
  check_operand("gather_rows", x);
  if (group.size() == 1) return x;
  const Tensor in = contiguous(x);
  Tensor y = gathered("gather_rows", in, group);
  if (recording(in))
    Tape::record("gather_rows", {&in}, {&y}, [g = &group, shape = in.shape()](Backward& b) {
      b.add(0, reshape(reduce_scatter_rows(b.dy(), *g), shape));
    });
  return y;
}

Tensor gather_rows_replicated(const Tensor& x, ProcessGroup& group) {
  check_operand("gather_rows_replicated", x);
  if (group.size() == 1) return x;
  const Tensor in = contiguous(x);
  Tensor y = gathered("gather_rows_replicated", in, group);
  if (recording(in))
    Tape::record("gather_rows_replicated", {&in}, {&y},
                 [g = &group, shape = in.shape()](Backward& b) {
                   b.add(0, reshape(scatter_rows(b.dy(), *g), shape));
                 });
  return y;
}

Tensor scatter_rows(const Tensor& x, ProcessGroup& group) {
  check_operand("scatter_rows", x);
  if (group.size() == 1) return x;
  const std::int64_t own = share("scatter_rows", x, group);
  const Tensor in = contiguous(x);
  // A copy, so that the rest of x can be freed.
  Tensor y = Tensor::empty(with_rows(in, own), in.dtype(), in.device());
  {
    const NoGradGuard quiet;
    y.copy_(in.alias(y.shape(), y.strides(), group.rank() * own * in.dim(-1)));
  }
  if (recording(in))
    Tape::record("scatter_rows", {&in}, {&y}, [g = &group, shape = in.shape()](Backward& b) {
      b.add(0, reshape(gather_rows_replicated(b.dy(), *g), shape));
    });
  return y;
}

Tensor reduce_scatter_rows(const Tensor& x, ProcessGroup& group) {
  check_operand("reduce_scatter_rows", x);
  if (group.size() == 1) return x;
  const std::int64_t own = share("reduce_scatter_rows", x, group);
  const Tensor in = contiguous(x);
  Tensor y = Tensor::empty(with_rows(in, own), in.dtype(), in.device());
  group.at_once().reduce_scatter(matrix(y, own), matrix(in, own * group.size())).wait();
  if (recording(in))
    Tape::record("reduce_scatter_rows", {&in}, {&y}, [g = &group, shape = in.shape()](Backward& b) {
      b.add(0, reshape(gather_rows(b.dy(), *g), shape));
    });
  return y;
}

Tensor gather_columns(const Tensor& x, ProcessGroup& group, const Rows& columns) {
  const std::int64_t rows = row_count("gather_columns", x);
  if (group.size() == 1) return x;
  check(static_cast<int>(columns.size()) == group.size(),
        "gather_columns: columns must have one number for each of {} ranks, got {}", group.size(),
        columns.size());
  std::int64_t all = 0, before = 0;
  for (int r = 0; r < group.size(); ++r) {
    if (r == group.rank()) before = all;
    all += columns[static_cast<std::size_t>(r)];
  }
  const std::int64_t own = columns[static_cast<std::size_t>(group.rank())];
  check(x.dim(-1) == own, "gather_columns: x must have {} columns on rank {}, got shape {}", own,
        group.rank(), x.shape());
  Shape shape = x.shape();
  shape[shape.size() - 1] = all;
  Tensor y;
  {
    const NoGradGuard quiet;
    const Tensor turned = contiguous(transpose(reshape(x, {rows, own}), 0, 1));
    const Tensor together = Tensor::empty({all, rows}, x.dtype(), x.device());
    group.at_once().all_gather(together, turned, columns).wait();
    y = reshape(contiguous(transpose(together, 0, 1)), shape);
  }
  if (recording(x))
    Tape::record("gather_columns", {&x}, {&y},
                 [before, own](Backward& b) { b.add(0, narrow(b.dy(), -1, before, own)); });
  return y;
}

}  // namespace weft::distributed
