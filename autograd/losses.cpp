#include "weft/autograd/losses.h"

#include "weft/autograd/cross_entropy_checks.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/loss_common.h"
#include "weft/autograd/view.h"

namespace weft {

using detail::check_loss_pair;
using detail::reduced;

Tensor l1_loss(const Tensor& y, const Tensor& target, Reduction reduction) {
  check_loss_pair("l1_loss", "y", y, target);
  return reduced(abs(sub(y, target)), reduction);
}

Tensor huber_loss(const Tensor& y, const Tensor& target, double delta, Reduction reduction) {
  check_loss_pair("huber_loss", "y", y, target);
  check(delta > 0, "huber_loss: delta must be above 0, got {}", delta);
  // With m = e clamped to [-delta, delta] both pieces are m (e - m / 2). No |e|: its second
  // derivative at 0 would be lost.
  const Tensor e = sub(y, target), near = clamp(e, -delta, delta);
  return reduced(mul(near, sub(e, mul(near, 0.5))), reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        Reduction reduction) {
  check_loss_pair("binary_cross_entropy_with_logits", "logits", logits, target);
  const Tensor one = mul(target, softplus(neg(logits)));
  const Tensor zero = mul(sub(1, target), softplus(logits));
  return reduced(add(one, zero), reduction);
}

Tensor kl_div(const Tensor& log_probs, const Tensor& target, Reduction reduction) {
  check_loss_pair("kl_div", "log_probs", log_probs, target);
  const Tensor absent = eq(target, 0);
  const Tensor log_target = log(where(absent, 1, target));
  const Tensor losses = mul(target, sub(log_target, where(absent, 0, log_probs)));
  return reduced(where(absent, 0, losses), reduction);
}

Tensor nll_loss(const Tensor& log_probs, const Tensor& targets, Reduction reduction,
                std::int64_t ignore_index) {
  detail::check_tensor("nll_loss", "log_probs", log_probs);
  detail::check_tensor("nll_loss", "targets", targets);
  if (!is_compute(log_probs.dtype()))
    throw_bad_dtype("nll_loss", log_probs.dtype(), kFloatingNames);
  check(targets.dtype() == DType::i32 || targets.dtype() == DType::i64,
        "nll_loss: targets must have dtype i32 or i64, got {}", targets.dtype());
  check(log_probs.ndim() > 0, "nll_loss: log_probs must have at least 1 axis, got a scalar");
  Shape rows = log_probs.shape();
  rows.pop_back();
  check(targets.shape() == rows, "nll_loss: targets must have shape {} (log_probs {}), got {}",
        rows, log_probs.shape(), targets.shape());
  detail::check_targets("nll_loss", contiguous(targets), log_probs.dim(-1), ignore_index);
  const Tensor counted = ne(targets, static_cast<double>(ignore_index));
  const Tensor place = where(counted, targets, 0);
  const Tensor picked = squeeze(gather(log_probs, -1, unsqueeze(place, -1)), -1);
  const Tensor losses = where(counted, neg(picked), 0);
  if (reduction != Reduction::mean) return reduced(losses, reduction);
  // In f32 for 16 bits, which round counts above 256.
  const DType wide = is_half(losses.dtype()) ? DType::f32 : losses.dtype();
  return cast(div(sum(cast(losses, wide)), cast(maximum(sum(counted), 1), wide)), losses.dtype());
}

}  // namespace weft
