#include "weft/autograd/router_noise.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/core/random.h"

namespace weft {

Tensor jitter(const Tensor& x, double eps, const RandomKey& key) {
  detail::check_tensor("jitter", "x", x);
  check(eps >= 0 && eps < 1, "jitter: eps must be in [0, 1), got {}", eps);
  if (!is_compute(x.dtype())) throw_bad_dtype("jitter", x.dtype(), kFloatingNames);
  Tensor y;
  {
    const NoGradGuard quiet;
    y = mul(x, uniform_(empty_like(x), key, 1 - eps, 1 + eps));
  }
  if (recording(x))
    Tape::record("jitter", {&x}, {&y},
                 [eps, key](Backward& b) { b.add(0, jitter(b.dy(), eps, key)); });
  return y;
}

Tensor random_logits(const Tensor& logits, const RandomKey& key, const Tensor& expert_bias) {
  detail::check_tensor("random_logits", "logits", logits);
  if (!is_compute(logits.dtype())) throw_bad_dtype("random_logits", logits.dtype(), kFloatingNames);
  Tensor y;
  {
    const NoGradGuard quiet;
    y = normal_(empty_like(logits), key);
    if (expert_bias.defined()) y = add(y, expert_bias);
  }
  if (recording(logits))
    Tape::record("random_logits", {&logits}, {&y}, [](Backward& b) { b.add(0, b.dy()); });
  return y;
}

}  // namespace weft
