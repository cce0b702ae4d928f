#include "weft/distributed/redistribute.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/distributed/placement_steps.h"

namespace weft::distributed {
namespace {

using PartialOp = AxisPlacement::Op;

// Collectives split the first axis: swaps it with `dim`.
Tensor dim_first(const Tensor& x, int dim) { return transpose(x, 0, dim).contiguous(); }

Rows chunks(std::int64_t length, int ranks) {
  Rows rows;
  for (int r = 0; r < ranks; ++r) {
    const auto [begin, end] = chunk_of(0, length, r, ranks);
    rows.push_back(end - begin);
  }
  return rows;
}

Shape with_dim(Shape shape, int dim, std::int64_t length) {
  shape[dim] = length;
  return shape;
}

Reduce reduction(PartialOp op) {
  return op == PartialOp::max ? Reduce::max : op == PartialOp::min ? Reduce::min : Reduce::sum;
}

Tensor averaged(const Tensor& x, const AxisPlacement& p, const ProcessGroup& g) {
  return p.op() == PartialOp::avg ? mul(x, 1.0 / g.size()) : x;
}

Tensor take_chunk(const Tensor& x, int dim, const ProcessGroup& g) {
  const auto [begin, end] = chunk_of(0, x.dim(dim), g.rank(), g.size());
  return narrow(x, dim, begin, end - begin).clone();
}

Tensor gather(const Tensor& x, int dim, std::int64_t length, ProcessGroup& g) {
  const Tensor in = dim_first(x, dim);
  Tensor out = Tensor::empty(with_dim(in.shape(), 0, length), x.dtype(), x.device());
  g.at_once().all_gather(out, in, chunks(length, g.size())).wait();
  return dim_first(out, dim);
}

Tensor reduce_to_chunk(const Tensor& x, int dim, const AxisPlacement& from, ProcessGroup& g) {
  const Tensor in = dim_first(x, dim);
  const Rows rows = chunks(x.dim(dim), g.size());
  Tensor out = Tensor::empty(with_dim(in.shape(), 0, rows[static_cast<std::size_t>(g.rank())]),
                             x.dtype(), x.device());
  g.at_once().reduce_scatter(out, in, rows, reduction(from.op())).wait();
  return averaged(dim_first(out, dim), from, g);
}

// The block (shape) of a flat buffer that starts at `offset`, which moves behind it.
Tensor next_block(const Tensor& flat, Shape shape, std::int64_t& offset) {
  const std::int64_t count = shape.numel();
  offset += count;
  return narrow(flat, 0, offset - count, count).view(shape);
}

// Chunks of dim `from` become chunks of dim `to`. `length` is that of `from` on all ranks together.
Tensor change_dim(const Tensor& x, int from, int to, std::int64_t length, ProcessGroup& g) {
  const Rows had = chunks(length, g.size()), gets = chunks(x.dim(to), g.size());
  const std::int64_t own = gets[static_cast<std::size_t>(g.rank())];
  const Tensor y =
      Tensor::empty(with_dim(with_dim(x.shape(), to, own), from, length), x.dtype(), x.device());
  const Tensor in = Tensor::empty({x.numel()}, x.dtype(), x.device());
  const Tensor out = Tensor::empty({y.numel()}, x.dtype(), x.device());
  Rows sent, received;
  std::int64_t offset = 0, begin = 0;
  for (const std::int64_t n : gets) {
    const Tensor part = narrow(x, to, begin, n);
    next_block(in, part.shape(), offset).copy_(part);
    sent.push_back(part.numel());
    begin += n;
  }
  for (const std::int64_t n : had) received.push_back(with_dim(y.shape(), from, n).numel());
  g.at_once().all_to_all(out, in, received, sent).wait();
  offset = begin = 0;
  for (const std::int64_t n : had) {
    const Tensor part = narrow(y, from, begin, n);
    part.copy_(next_block(out, part.shape(), offset));
    begin += n;
  }
  return y;
}

// `length`: of the dim that `from` shards, on all ranks of the axis together.
Tensor run_step(const Tensor& x, const AxisPlacement& from, const AxisPlacement& to,
                std::int64_t length, ProcessGroup& g) {
  // An average may be in range where the sum is not.
  if (from.is_partial() && from.op() == PartialOp::avg && x.dtype() == DType::f16)
    return run_step(x.to(DType::f32), from, to, length, g).to(DType::f16);
  if (from.is_replicate()) {
    if (to.is_shard()) return take_chunk(x, to.dim(), g);
    return to.op() == PartialOp::sum && g.rank() > 0 ? zeros_like(x) : x;
  }
  if (from.is_partial()) {
    if (to.is_shard()) return reduce_to_chunk(x, to.dim(), from, g);
    const Tensor y = x.clone();
    g.at_once().all_reduce(y, reduction(from.op())).wait();
    return averaged(y, from, g);
  }
  if (to.is_shard()) return change_dim(x, from.dim(), to.dim(), length, g);
  return gather(x, from.dim(), length, g);
}

Shape local_shape(const Shape& whole, const Placements& placements, const MeshAxes& axes) {
  return nn::shape_of(shard_spec(whole, placements, axes));
}

Tensor run_steps(Tensor x, const Shape& whole, const MeshAxes& axes, Placements now,
                 const std::vector<PlacementStep>& steps) {
  for (const PlacementStep& step : steps) {
    const AxisPlacement from = now[step.axis];
    now[step.axis] = AxisPlacement::replicate();
    const std::int64_t length = from.is_shard() ? local_shape(whole, now, axes)[from.dim()] : 0;
    x = run_step(x, from, step.to, length, *axes[step.axis]);
    now[step.axis] = step.to;
  }
  return x;
}

// How the gradient of a tensor is placed.
Placements of_gradient(Placements placements) {
  for (AxisPlacement& p : placements)
    if (p.is_partial()) p = AxisPlacement::replicate();
  return placements;
}

void check_gradient(const Placements& gradient, DType dtype, const Shape& whole,
                    const Placements& to, const MeshAxes& axes) {
  check_placements("redistribute", whole, gradient, axes);
  Placements expected = of_gradient(to);
  for (std::size_t i = 0; i < to.size(); ++i)
    if (to[i].is_replicate() && gradient[i] == AxisPlacement::partial()) expected[i] = gradient[i];
  check(gradient == expected, "redistribute: the gradient of {} must be placed as ({}), got ({})",
        describe(dtype, whole, to, axes), text_of(expected), text_of(gradient));
}

// The values that are averaged.
double averages(const Placements& placements, const MeshAxes& axes) {
  double n = 1;
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (placements[i].is_partial() && placements[i].op() == PartialOp::avg) n *= axes[i]->size();
  return n;
}

bool has(const Placements& placements, PartialOp op) {
  for (const AxisPlacement& p : placements)
    if (p.is_partial() && p.op() == op) return true;
  return false;
}

}  // namespace

Tensor redistribute(const Tensor& x, const Shape& whole, const MeshAxes& axes,
                    const Placements& from, const Placements& to, const Cluster& cluster,
                    const Placements& gradient) {
  weft::detail::check_tensor("redistribute", "x", x);
  const std::vector<PlacementStep> steps =
      cheapest_steps(whole, x.dtype(), axes, from, to, cluster).steps;
  const Shape part = local_shape(whole, from, axes);
  const auto text = [&] { return describe(x.dtype(), whole, from, axes); };
  check(x.shape() == part, "redistribute: the part of {} must have shape {}, got {}", text(), part,
        x.shape());
  for (const Placements* const p : {&from, &to})
    check(is_compute(x.dtype()) || !has(*p, PartialOp::avg),
          "redistribute: an average needs dtype f32, f64, bf16 or f16, got {}",
          describe(x.dtype(), whole, *p, axes));
  const Placements dy = gradient.empty() ? of_gradient(to) : gradient;
  check_gradient(dy, x.dtype(), whole, to, axes);
  if (steps.empty() && dy == of_gradient(to)) return x;
  const bool records = recording(x);
  for (const Placements* const p : {&from, &to})
    check(!records || !(has(*p, PartialOp::max) || has(*p, PartialOp::min)),
          "redistribute: a maximum or minimum of ranks has no gradient, got {}",
          describe(x.dtype(), whole, *p, axes));
  Tensor y;
  {
    const NoGradGuard quiet;
    y = run_steps(x.contiguous(), whole, axes, from, steps);
  }
  if (y.impl() == x.impl()) y = x.alias(x.shape(), x.strides(), 0);
  if (records)
    Tape::record("redistribute", {&x}, {&y}, [whole, axes, from, to, dy, cluster](Backward& b) {
      const double n = averages(to, axes) / averages(from, axes);
      const Tensor dx = redistribute(b.dy(), whole, axes, dy, of_gradient(from), cluster);
      b.add(0, n == 1 ? dx : mul(dx, n));
    });
  return y;
}

}  // namespace weft::distributed
