#include "weft/autograd/cross_entropy.h"

#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cross_entropy.h"

namespace weft {
namespace {

void check_targets_dtype(const char* op, const Tensor& targets) {
  detail::check_tensor(op, "targets", targets);
  check(targets.dtype() == DType::i32 || targets.dtype() == DType::i64,
        "{}: targets must have dtype i32 or i64, got {}", op, targets.dtype());
}

// Before any result exists. Only host memory is looked at: on another device it would cost a sync.
// The scratch exists on every device, so that meta counts the same bytes.
void check_targets(const Tensor& targets, std::int64_t classes, std::int64_t ignore_index) {
  const Tensor bad = Tensor::empty({1}, DType::i64, targets.device());
  if (!targets.device().is_cpu()) return;
  cpu::find_bad_target(targets, ignore_index, classes, bad);
  const std::int64_t row = *bad.data<std::int64_t>();
  if (row < 0) return;
  const std::int64_t got = targets.dtype() == DType::i64 ? targets.data<std::int64_t>()[row]
                                                         : targets.data<std::int32_t>()[row];
  check(false, "cross_entropy: target must be in [0, {}) or ignore_index {}, got {}", classes,
        ignore_index, got);
}

}  // namespace

Tensor count_valid(const Tensor& targets, std::int64_t ignore_index) {
  check_targets_dtype("count_valid", targets);
  const Tensor t = contiguous(targets);
  Tensor count = Tensor::empty({}, DType::i64, targets.device());
  dispatch<cpu::count_valid, cuda::count_valid>(t, ignore_index, count);
  return count;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  detail::check_tensor("cross_entropy", "logits", logits);
  check(is_compute(logits.dtype()),
        "cross_entropy: logits must have dtype f32, f64 or bf16, got {}", logits.dtype());
  check_targets_dtype("cross_entropy", targets);
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
  check(smoothing >= 0 && smoothing < 1, "cross_entropy: label_smoothing must be in [0, 1), got {}",
        smoothing);
  const std::int64_t ignore = options.ignore_index;

  const Tensor x = contiguous(logits);
  const Tensor t = contiguous(targets);
  check_targets(t, x.dim(-1), ignore);

  const DType real = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor stats = Tensor::empty({t.numel(), 2}, real, x.device());
  Tensor losses = Tensor::empty(rows, real, x.device());
  dispatch<cpu::cross_entropy_fwd, cuda::cross_entropy_fwd>(x, t, ignore, smoothing, losses, stats);

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
                       sx.get(), st.get(), ss.get(), dy, sc.get(), ignore, smoothing, dx);
                   b.add(0, dx);
                 });
  }
  return loss;
}

}  // namespace weft
