#include "weft/autograd/cross_entropy.h"

#include "weft/autograd/cross_entropy_checks.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cross_entropy.h"

namespace weft {
Tensor count_valid(const Tensor& targets, std::int64_t ignore_index) {
  detail::check_targets_dtype("count_valid", targets);
  const Tensor t = contiguous(targets);
  Tensor count = Tensor::empty({}, DType::i64, targets.device());
  dispatch<cpu::count_valid, cuda::count_valid>(t, ignore_index, count);
  return count;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  detail::check_tensor("cross_entropy", "logits", logits);
  check(is_compute(logits.dtype()),
        "cross_entropy: logits must have dtype f32, f64, bf16 or f16, got {}", logits.dtype());
  detail::check_targets_dtype("cross_entropy", targets);
  check(logits.ndim() >= 1 && logits.dim(-1) >= 1,
        "cross_entropy: logits must have a last axis of at least 1 class, got shape {}",
        logits.shape());
  Shape rows = logits.shape();
  rows.pop_back();
  check(targets.shape() == rows,
        "cross_entropy: targets must have shape {} (logits {} without the last axis), got {}", rows,
        logits.shape(), targets.shape());
  check(targets.device() == logits.device(),
        "cross_entropy: targets must be on device {} like the logits, got {}", logits.device(),
        targets.device());
  const double smoothing = options.label_smoothing;
  detail::check_smoothing("cross_entropy", smoothing);
  const std::int64_t ignore = options.ignore_index;
  detail::check_hits("cross_entropy", options.hits, targets);

  const Tensor x = contiguous(logits);
  const Tensor t = contiguous(targets);
  detail::check_targets("cross_entropy", t, x.dim(-1), ignore);

  const DType real = detail::loss_dtype(x.dtype());
  const Tensor stats = Tensor::empty({t.numel(), 2}, real, x.device());
  Tensor losses = Tensor::empty(rows, real, x.device());
  dispatch<cpu::cross_entropy_fwd, cuda::cross_entropy_fwd>(x, t, ignore, smoothing, losses, stats);
  if (options.hits.defined())
    dispatch<cpu::cross_entropy_hits, cuda::cross_entropy_hits>(x, t, ignore, options.hits);

  Tensor count;
  if (options.reduction == Reduction::mean) count = count_valid(t, ignore);
  Tensor loss = losses;
  if (options.reduction != Reduction::none) {
    loss = Tensor::empty({}, real, x.device());
    dispatch<cpu::cross_entropy_reduce, cuda::cross_entropy_reduce>(losses, count, loss);
  }

  if (recording(x)) {
    Tape::record("cross_entropy", {&x}, {&loss},
                 [sx = save(x, "logits"), st = save(t, "targets"), ss = save(stats, "stats"),
                  sc = save(count, "count"), ignore, smoothing](Backward& b) {
                   b.once_differentiable();
                   const Tensor dy = contiguous(b.dy());
                   Tensor dx = empty_like(sx.get());
                   dispatch<cpu::cross_entropy_bwd, cuda::cross_entropy_bwd>(
                       CrossEntropyBwdIn{.logits = sx.get(),
                                         .targets = st.get(),
                                         .stats = ss.get(),
                                         .dy = dy,
                                         .count = sc.get(),
                                         .ignore_index = ignore,
                                         .label_smoothing = smoothing},
                       dx);
                   b.add(0, dx);
                 });
  }
  return loss;
}

}  // namespace weft
