#pragma once
#include "weft/autograd/operand.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/reduction.h"
#include "weft/core/error.h"

namespace weft::detail {

/// A loss that broadcasts hides a mistake.
inline void check_loss_pair(const char* op, const char* label, const Tensor& y,
                            const Tensor& target) {
  check_tensor(op, label, y);
  check_tensor(op, "target", target);
  check(target.shape() == y.shape(), "{}: target must have {}'s shape {}, got {}", op, label,
        y.shape(), target.shape());
  check(target.dtype() == y.dtype(), "{}: target must have {}'s dtype {}, got {}", op, label,
        y.dtype(), target.dtype());
  check(target.device() == y.device(), "{}: target must be on {}'s device {}, got {}", op, label,
        y.device(), target.device());
  if (!is_compute(y.dtype())) throw_bad_dtype(op, y.dtype(), kFloatingNames);
}

inline Tensor reduced(const Tensor& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::none:
      return losses;
    case Reduction::mean:
      return mean(losses);
    case Reduction::sum:
      break;
  }
  return sum(losses);
}

}  // namespace weft::detail
