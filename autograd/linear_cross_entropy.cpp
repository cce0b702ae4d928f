#include "weft/autograd/linear_cross_entropy.h"

#include <algorithm>
#include <optional>

#include "weft/autograd/cross_entropy_checks.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/head_chunks.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cross_entropy.h"
#include "weft/core/kernels/elementwise.h"

namespace weft {
namespace {

constexpr const char* kOp = "linear_cross_entropy";

void check_operands(const Tensor& x, const Tensor& weight, const Tensor& targets,
                    std::int64_t least_classes) {
  detail::check_tensor(kOp, "x", x);
  detail::check_tensor(kOp, "weight", weight);
  check(is_compute(x.dtype()), "{}: x must have dtype f32, f64, bf16 or f16, got {}", kOp,
        x.dtype());
  detail::check_targets_dtype(kOp, targets);
  check(x.ndim() >= 1, "{}: x must have at least 1 axis, got shape {}", kOp, x.shape());
  check(weight.ndim() == 2 && weight.dim(0) >= least_classes && weight.dim(1) == x.dim(-1),
        "{}: weight must have shape [V, {}] with V >= {} (last axis of x {}), got {}", kOp,
        x.dim(-1), least_classes, x.shape(), weight.shape());
  check(weight.dtype() == x.dtype(), "{}: weight must have dtype {} like x, got {}", kOp, x.dtype(),
        weight.dtype());
  check(weight.device() == x.device(), "{}: weight must be on device {} like x, got {}", kOp,
        x.device(), weight.device());
  Shape rows = x.shape();
  rows.pop_back();
  check(targets.shape() == rows,
        "{}: targets must have shape {} (x {} without the last axis), got {}", kOp, rows, x.shape(),
        targets.shape());
  check(targets.device() == x.device(), "{}: targets must be on device {} like x, got {}", kOp,
        x.device(), targets.device());
}

/// Gradient buffers: dx in x's dtype, since it is written once; dw in the accumulation dtype.
struct Gradients {
  Tensor dx, dw;

  Gradients(const Tensor& x, bool needs_x, const Tensor& weight, bool needs_weight) {
    const CategoryScope category(Category::gradient);
    if (needs_x) dx = empty_like(x);
    if (needs_weight) make_dw(weight);
  }
  void make_dw(const Tensor& weight) {
    dw = Tensor::empty(weight.shape(), detail::loss_dtype(weight.dtype()), weight.device());
  }
  Tensor dx_rows(std::int64_t rows) const {
    return dx.defined() ? dx.alias({rows, dx.dim(-1)}, {dx.dim(-1), 1}, 0) : Tensor();
  }
  Tensor dw_as(DType dtype) const {
    return dw.defined() && dw.dtype() != dtype ? dw.to(dtype) : dw;
  }
};

/// t * factor; in place unless an outer tape also holds t for its own backward.
Tensor scaled(Tensor t, const Tensor& factor) {
  const Tensor out = t.impl()->refs.load() > 1 ? empty_like(t) : t;
  dispatch<cpu::scale_by, cuda::scale_by>(t, factor, false, out);
  return out;
}

/// Whether the gradient of the weight goes to an f32 main_grad, and need not be rounded.
bool has_f32_sum(const Tensor& weight) {
  const Tensor main = weight.impl()->leaf ? weight.main_grad() : Tensor();
  return is_half(weight.dtype()) && main.defined() && main.dtype() == DType::f32;
}

/// Adds dw, which may be f32 for a 16-bit weight, times the upstream gradient.
void add_head_gradient(Backward& b, Tensor dw, const Tensor& dy, DType dtype) {
  if (dw.dtype() == dtype) return b.add(1, scaled(std::move(dw), dy));
  const GradientSum sum = b.accumulator(1, dw.shape(), dw.dtype());
  if (!sum.to.defined()) return b.add(1, cast(scaled(std::move(dw), dy), dtype));
  if (sum.adds) detail::count_update(sum.to);
  dispatch<cpu::scale_by, cuda::scale_by>(dw, dy, sum.adds, sum.to);
}

// dx and dw are the gradients for an upstream gradient of 1, divided by `factor` unless it is null.
void record_reduced(const Tensor& x, const Tensor& weight, const Tensor& loss, const Tensor& dx,
                    const Tensor& dw, const Tensor& factor) {
  Tape::record(kOp, {&x, &weight}, {&loss},
               [sdx = save(dx, "dx"), sdw = save(dw, "dweight"), sf = save(factor, "factor"),
                dtype = weight.dtype()](Backward& b) mutable {
                 b.once_differentiable();
                 const Tensor dy = contiguous(sf ? mul(b.dy(), sf.get()) : b.dy());
                 if (b.needs(0)) b.add(0, scaled(sdx.take(), dy));
                 if (b.needs(1)) add_head_gradient(b, sdw.take(), dy, dtype);
               });
}

void record_rows(const Tensor& x, const Tensor& weight, const Tensor& losses, const Tensor& targets,
                 const Tensor& stats, CrossEntropyOptions options, std::int64_t chunk_rows,
                 const std::optional<ClassRange>& range) {
  options.hits = {};  // forward has filled them
  Tape::record(kOp, {&x, &weight}, {&losses},
               [sx = save(x, "x"), sw = save(weight, "weight"), st = save(targets, "targets"),
                ss = save(stats, "stats"), options, chunk_rows, range](Backward& b) {
                 b.once_differentiable();
                 const Tensor dy = contiguous(b.dy());
                 const std::int64_t rows = dy.numel();
                 const DType dtype = sw.get().dtype();
                 Gradients g(sx.get(), b.needs(0), sw.get(), false);
                 GradientSum sum;
                 if (b.sum_dtype(1, dtype) != dtype)
                   sum = b.accumulator(1, sw.get().shape(), DType::f32);
                 if (sum.to.defined())
                   g.dw = sum.to;
                 else if (b.needs(1))
                   g.make_dw(sw.get());
                 detail::HeadChunks chunks(sx.get(), sw.get(), st.get(), options, chunk_rows, range,
                                           nullptr);
                 chunks.gradients(ss.get(), dy.alias({rows}, {1}, 0), g.dx_rows(rows), g.dw,
                                  sum.adds);
                 if (b.needs(0)) b.add(0, g.dx);
                 if (b.needs(1) && !sum.to.defined()) b.add(1, g.dw_as(dtype));
               });
}

Tensor head_loss(const Tensor& x_in, const Tensor& weight_in, const Tensor& targets_in,
                 const CrossEntropyOptions& options, std::int64_t chunk_rows,
                 const detail::ClassPart* part) {
  check_operands(x_in, weight_in, targets_in, part ? 0 : 1);
  detail::check_smoothing(kOp, options.label_smoothing);
  detail::check_hits(kOp, options.hits, targets_in);
  const Tensor x = contiguous(x_in), weight = contiguous(weight_in), t = contiguous(targets_in);
  const std::int64_t classes = part ? part->range.all : weight.dim(0);
  detail::check_targets(kOp, t, classes, options.ignore_index);
  std::optional<ClassRange> range;
  if (part) range = part->range;
  const detail::Gather* const gather = part ? &part->gather : nullptr;

  const std::int64_t rows = t.numel();
  if (chunk_rows == 0)
    chunk_rows = detail::loss_chunk_rows(rows, part ? part->most : classes, x.dtype(),
                                         x.device().is_gpu() ? detail::LogitSpace::gpu_memory
                                         : part              ? detail::LogitSpace::cpu_memory
                                                             : detail::LogitSpace::cpu_cache);
  const DType real = detail::loss_dtype(x.dtype());
  const bool reduced = options.reduction != Reduction::none;
  const bool recorded = recording(x, weight);
  // The first pass of a recomputed region needs only the loss; its second pass needs the gradient.
  const bool keeps = recorded && !Tape::counting();

  Tensor losses = Tensor::empty(t.shape(), real, x.device());
  const Tensor flat = losses.alias({rows}, {1}, 0);
  Tensor count, stats, loss = losses;
  if (options.reduction == Reduction::mean) count = count_valid(t, options.ignore_index);
  if (reduced) loss = Tensor::empty({}, real, x.device());

  Tensor dx, dw, factor;
  {
    const NoGradGuard quiet;
    detail::HeadChunks chunks(x, weight, t, options, chunk_rows, range, gather);
    if (keeps && reduced) {
      // In f16 the gradients of a mean are too small before the upstream gradient, a loss scale,
      // multiplies them: backward divides by the count, and rounds dw.
      const bool late = x.dtype() == DType::f16;
      if (late && count.defined()) factor = div(1.0, maximum(count.to(real), 1));
      const Gradients g(x, Tape::follows(x), weight, Tape::follows(weight));
      chunks.losses_and_gradients(flat, late ? Tensor() : count, g.dx_rows(rows), g.dw);
      dx = g.dx;
      dw = late || has_f32_sum(weight) ? g.dw : g.dw_as(weight.dtype());
    } else {
      if (keeps) stats = Tensor::empty({rows, 2}, real, x.device());
      chunks.losses(flat, stats);
    }
  }
  if (reduced) dispatch<cpu::cross_entropy_reduce, cuda::cross_entropy_reduce>(losses, count, loss);
  if (!recorded) return loss;

  if (reduced)
    record_reduced(x, weight, loss, dx, dw, factor);
  else
    record_rows(x, weight, loss, t, stats, options, chunk_rows, range);
  return loss;
}

}  // namespace

std::int64_t detail::loss_chunk_rows(std::int64_t rows, std::int64_t classes, DType dtype,
                                     LogitSpace space) {
  // Enough rows that one more read and write of the weight gradient per chunk is cheap beside the
  // matrix products: 64 MiB of logits, on a GPU, whose products are faster, 1 GiB. If the least
  // number of rows fits in an L2 cache, fill the cache. All chunks have about the same size.
  constexpr std::int64_t kLeastRows = 512, kCachedBytes = 512 << 10;
  const std::int64_t bytes = (space == LogitSpace::gpu_memory ? 1024 : 64) << 20;
  const std::int64_t row_bytes = classes * static_cast<std::int64_t>(size_of(dtype));
  std::int64_t most = std::max(kLeastRows, bytes / row_bytes);
  if (space == LogitSpace::cpu_cache && kLeastRows * row_bytes <= kCachedBytes)
    most = kCachedBytes / row_bytes;
  const std::int64_t chunks = std::max<std::int64_t>(1, (rows + most - 1) / most);
  return (rows + chunks - 1) / chunks;
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options) {
  return detail::linear_cross_entropy(x, weight, targets, options, 0);
}

Tensor detail::linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                    const CrossEntropyOptions& options, std::int64_t chunk_rows) {
  return head_loss(x, weight, targets, options, chunk_rows, nullptr);
}

Tensor detail::linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                    const CrossEntropyOptions& options, const ClassPart& part,
                                    std::int64_t chunk_rows) {
  return head_loss(x, weight, targets, options, chunk_rows, &part);
}

}  // namespace weft
