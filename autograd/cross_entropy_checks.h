#pragma once
#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/operand.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cross_entropy.h"
#include "weft/core/tensor.h"

namespace weft::detail {

inline void check_targets_dtype(const char* op, const Tensor& targets) {
  check_tensor(op, "targets", targets);
  check(targets.dtype() == DType::i32 || targets.dtype() == DType::i64,
        "{}: targets must have dtype i32 or i64, got {}", op, targets.dtype());
}

inline void check_smoothing(const char* op, double smoothing) {
  check(smoothing >= 0 && smoothing < 1, "{}: label_smoothing must be in [0, 1), got {}", op,
        smoothing);
}

/// In host memory this throws before any result exists. For a GPU the check must not synchronize:
/// the kernel reports bad targets later. Every device allocates the scratch, so that meta counts
/// it.
inline void check_targets(const char* op, const Tensor& targets, std::int64_t classes,
                          std::int64_t ignore_index) {
  const Tensor bad = Tensor::empty({1}, DType::i64, targets.device());
  dispatch<cpu::find_bad_target, cuda::find_bad_target>(targets, ignore_index, classes, op, bad);
  if (!targets.device().is_cpu()) return;
  const std::int64_t row = *bad.data<std::int64_t>();
  if (row < 0) return;
  const std::int64_t got = targets.dtype() == DType::i64 ? targets.data<std::int64_t>()[row]
                                                         : targets.data<std::int32_t>()[row];
  check(false, "{}: target must be in [0, {}) or ignore_index {}, got {}", op, classes,
        ignore_index, got);
}

/// Losses and their statistics: f64 for f64 logits, else f32.
inline DType loss_dtype(DType logits) { return logits == DType::f64 ? DType::f64 : DType::f32; }

inline void check_hits(const char* op, const Tensor& hits, const Tensor& targets) {
  if (!hits.defined()) return;
  check(hits.dtype() == DType::boolean && hits.shape() == targets.shape() &&
            hits.device() == targets.device() && hits.is_contiguous(),
        "{}: hits must be a contiguous bool tensor of shape {} on device {} like the targets, got "
        "{} {} on {}",
        op, targets.shape(), targets.device(), hits.dtype(), hits.shape(), hits.device());
}

}  // namespace weft::detail
