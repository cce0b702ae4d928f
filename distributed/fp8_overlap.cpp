#include "weft/distributed/fp8_overlap.h"

#include <algorithm>
#include <utility>

#include "weft/autograd/discard.h"
#include "weft/autograd/fp8_kept.h"
#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/linear_common.h"
#include "weft/core/error.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/row_ring.h"

namespace weft::distributed {
namespace {

using detail::rows;
using fp8::Products;
using fp8::Quantized;
using fp8::SavedQuantized;
using weft::detail::as_matrix;

fp8::ReduceAmax largest_of(ProcessGroup& group) {
  return [g = &group](const Tensor& amax) { g->at_once().all_reduce(amax, Reduce::max).wait(); };
}

void check_overlap(const char* op, const fp8::Recipe& recipe, Overlap overlap) {
  check(
      overlap == Overlap::none || recipe.travels(),
      "{}: overlap needs a recipe whose codes travel: one scale for a tensor, and FP8 in backward",
      op);
}

// The rows of one rank are the operand of a product.
void check_chunks(const char* op, std::int64_t rows, Device device) {
  check(!device.is_gpu() || rows % fp8::kMultiple == 0,
        "{}: on a GPU overlap needs rows of each rank that are a multiple of {}, got {}", op,
        fp8::kMultiple, rows);
}

Products with_rows(Products p, std::int64_t rows) {
  p.all_rows = rows;
  return p;
}

// Some rows of an operand.
Quantized part_of(const Quantized& q, std::int64_t first, std::int64_t count) {
  return {.rows = rows(q.rows, first, count), .columns = {}, .inverse = q.inverse};
}

// The codes of all ranks, which share their scale.
Quantized like_gathered(const Quantized& own, const ProcessGroup& group) {
  return {.rows = Tensor::empty({own.rows.dim(0) * group.size(), own.rows.dim(1)}, own.rows.dtype(),
                                own.rows.device()),
          .columns = {},
          .inverse = own.inverse};
}

// On a GPU products of backward read operands by column: made once, from all rows.
void add_columns(Quantized& q) {
  if (!q.rows.device().is_gpu()) return;
  q.columns = fp8::transposed_codes(q.rows, {.each = q.rows.dim(0)});
}

// What backward of an op multiplies on this device.
SavedQuantized keep_columns(Quantized q, const char* label) {
  if (q.columns.defined()) q.rows = {};
  return {q, label};
}

struct Kept {
  SavedQuantized x, weight;
  bool own_x = false;  // x has this rank's rows only
  Shape shape_of_x, shape_of_weight;
};

void backward_of_gather(Backward& b, const Products& p, const Kept& kept, ProcessGroup& group) {
  const Tensor dy = contiguous(as_matrix(b.dy()));
  const bool gpu = dy.device().is_gpu(), weight = b.needs(1);
  Quantized x = kept.x.get();
  Work arrival;
  if (weight && kept.own_x) {
    const Quantized own = std::exchange(x, like_gathered(x, group));
    arrival = group.all_gather(x.rows, own.rows);
  }
  const Quantized g = fp8::round_gradient(p, dy, {.rows = true, .columns = gpu && weight});
  Work scattered;
  Tensor dx, partial;
  if (b.needs(0)) {
    partial = Tensor::empty({p.all_rows, p.inputs}, p.dtype, dy.device());
    dx = Tensor::empty(kept.shape_of_x, p.dtype, dy.device());
    fp8::multiply(p, GroupedProduct::input_grad, g, kept.weight.get(), {}, partial);
  }
  arrival.wait();
  if (dx.defined()) scattered = group.reduce_scatter(as_matrix(dx), partial);
  if (weight) {
    if (kept.own_x) add_columns(x);
    fp8::add_product_gradient(
        b, 1, p.dtype, kept.shape_of_weight, dy.device(), [&](const Tensor& out, bool accumulate) {
          fp8::multiply(p, GroupedProduct::weight_grad, g, x, {}, out, accumulate);
        });
  }
  weft::detail::add_bias_gradient(b, 2, dy);
  scattered.wait();
  if (dx.defined()) b.add(0, dx);
}

void backward_of_scatter(Backward& b, const Products& p, const Kept& kept, ProcessGroup& group,
                         bool ring) {
  const Tensor own_dy = contiguous(as_matrix(b.dy()));
  const std::int64_t n = own_dy.dim(0);
  const Quantized own = fp8::round_gradient(with_rows(p, n), own_dy, {}, largest_of(group));
  Quantized g = like_gathered(own, group);
  const Quantized weight = kept.weight.get();
  Tensor dx;
  if (b.needs(0)) dx = Tensor::empty(kept.shape_of_x, p.dtype, own_dy.device());
  const auto multiply = [&](std::int64_t first, std::int64_t count) {
    if (dx.defined())
      fp8::multiply(with_rows(p, count), GroupedProduct::input_grad, part_of(g, first, count),
                    weight, {}, rows(as_matrix(dx), first, count));
  };
  if (ring) {
    detail::ring_gather(g.rows, own.rows, group, [&](int c) { multiply(c * n, n); });
  } else {
    group.at_once().all_gather(g.rows, own.rows).wait();
    multiply(0, p.all_rows);
  }
  if (b.needs(1)) {
    add_columns(g);
    fp8::add_product_gradient(b, 1, p.dtype, kept.shape_of_weight, own_dy.device(),
                              [&](const Tensor& out, bool accumulate) {
                                fp8::multiply(p, GroupedProduct::weight_grad, g, kept.x.get(), {},
                                              out, accumulate);
                              });
  }
  if (dx.defined()) b.add(0, dx);
}

Products products_of(const fp8::Recipe& recipe, const fp8::LayerState* state, const Tensor& weight,
                     std::int64_t all_rows) {
  return {.recipe = recipe,
          .dtype = weight.dtype(),
          .count = 1,
          .all_rows = all_rows,
          .outputs = weight.dim(0),
          .inputs = weight.dim(1),
          .delayed = state ? state->delayed : fp8::Delayed{}};
}

}  // namespace

Tensor fp8_gather_linear(const Tensor& x, const Tensor& weight_in, const Tensor& bias,
                         const fp8::Recipe& recipe, const fp8::LayerState* state,
                         ProcessGroup& group, const Fp8Rows& how) {
  constexpr const char* kOp = "fp8_gather_linear";
  detail::check_row_operands(kOp, x, weight_in, bias);
  check_overlap(kOp, recipe, how.overlap);
  if (group.size() == 1 || !recipe.travels())
    return use_discarded(
        how.gathers_again && group.size() > 1, {x},
        [g = &group](const TensorList& in) { return gather_rows(in[0], *g); },
        [&](const Tensor& all) { return fp8_linear(all, weight_in, bias, recipe, state); });
  const Tensor in = contiguous(x), weight = contiguous(weight_in);
  const std::int64_t n = in.numel() / std::max<std::int64_t>(1, in.dim(-1)), all = n * group.size();
  const Products p = products_of(recipe, state, weight, all);
  fp8::check_products(kOp, p, in.device());
  const bool recorded = recording(in, weight, bias), keeps = recorded && !Tape::counting();
  const bool ring = how.overlap != Overlap::none, gpu = in.device().is_gpu();
  if (ring) check_chunks(kOp, n, in.device());
  Tensor y = Tensor::empty(detail::shape_with(in, all, p.outputs), p.dtype, in.device());
  Kept kept;
  {
    const NoGradGuard quiet;
    const Quantized w = fp8::round_weight(p, weight, recorded, recorded && gpu, state);
    const Quantized own = fp8::round_x(with_rows(p, n), as_matrix(in), recorded, {},
                                       largest_of(group), fp8::take_rows(x, recipe, p.delayed));
    Quantized gathered = like_gathered(own, group);
    const auto multiply = [&](std::int64_t first, std::int64_t count) {
      fp8::multiply(with_rows(p, count), GroupedProduct::forward, part_of(gathered, first, count),
                    w, bias, rows(as_matrix(y), first, count));
    };
    if (ring) {
      detail::ring_gather(gathered.rows, own.rows, group, [&](int c) { multiply(c * n, n); });
    } else {
      group.at_once().all_gather(gathered.rows, own.rows).wait();
      multiply(0, all);
    }
    if (keeps) {
      const bool own_x = ring || how.gathers_again;
      if (!own_x) add_columns(gathered);
      kept = {own_x ? SavedQuantized(own, "x") : keep_columns(gathered, "x"),
              keep_columns(w, "weight"), own_x, x.shape(), weight.shape()};
    }
  }
  if (recorded)
    Tape::record(kOp, {&in, &weight, &bias}, {&y}, [p, kept, g = &group](Backward& b) {
      b.once_differentiable();
      const NoGradGuard quiet;
      backward_of_gather(b, p, kept, *g);
    });
  return y;
}

Tensor fp8_linear_scatter(const Tensor& x, const Tensor& weight_in, const fp8::Recipe& recipe,
                          const fp8::LayerState* state, ProcessGroup& group, Overlap overlap) {
  constexpr const char* kOp = "fp8_linear_scatter";
  detail::check_row_operands(kOp, x, weight_in, {});
  check_overlap(kOp, recipe, overlap);
  if (group.size() == 1) return fp8_linear(x, weight_in, {}, recipe, state);
  if (!recipe.travels())
    return reduce_scatter_rows(fp8_linear(x, weight_in, {}, recipe, state), group);
  const Tensor in = contiguous(x), weight = contiguous(weight_in);
  const Tensor matrix = as_matrix(in).detach();
  const std::int64_t all = matrix.dim(0), ranks = group.size();
  check(all % ranks == 0, "{}: the {} rows of x {} do not divide among {} ranks", kOp, all,
        x.shape(), ranks);
  const Products p = products_of(recipe, state, weight, all);
  fp8::check_products(kOp, p, in.device());
  const bool recorded = recording(in, weight), keeps = recorded && !Tape::counting();
  const bool gpu = in.device().is_gpu(), transposes = recorded && gpu;
  if (overlap != Overlap::none) check_chunks(kOp, all / ranks, in.device());
  Tensor y = Tensor::empty(detail::shape_with(in, all / ranks, p.outputs), p.dtype, in.device());
  Kept kept;
  {
    const NoGradGuard quiet;
    const Tensor out = as_matrix(y);
    const Quantized w = fp8::round_weight(p, weight, recorded, transposes, state);
    const Quantized q =
        fp8::round_x(p, matrix, recorded, {.rows = true, .columns = transposes && keeps}, {},
                     fp8::take_rows(x, recipe, p.delayed));
    if (overlap == Overlap::none) {
      const Tensor partial = Tensor::empty({all, p.outputs}, p.dtype, in.device());
      fp8::multiply(p, GroupedProduct::forward, q, w, {}, partial);
      group.at_once().reduce_scatter(out, partial).wait();
    } else if (overlap == Overlap::ring && !gpu) {  // it adds on the host
      detail::ring_scatter(out, group,
                           [&](std::int64_t first, std::int64_t count, const Tensor& into) {
                             fp8::multiply(with_rows(p, count), GroupedProduct::forward,
                                           part_of(q, first, count), w, {}, into);
                           });
    } else {
      detail::pipeline_scatter(out, group, fp8::kMultiple,
                               [&](std::int64_t first, std::int64_t count, const Tensor& into) {
                                 if (count == 0) return;
                                 Products columns = p;
                                 columns.outputs = count;
                                 fp8::multiply(columns, GroupedProduct::forward, q,
                                               part_of(w, first, count), {}, into);
                               });
    }
    if (keeps)
      kept = {keep_columns(q, "x"), keep_columns(w, "weight"), false, x.shape(), weight.shape()};
  }
  const Tensor no_bias;
  if (recorded)
    Tape::record(kOp, {&in, &weight, &no_bias}, {&y},
                 [p, kept, g = &group, ring = overlap != Overlap::none](Backward& b) {
                   b.once_differentiable();
                   const NoGradGuard quiet;
                   backward_of_scatter(b, p, kept, *g, ring);
                 });
  return y;
}

}  // namespace weft::distributed
