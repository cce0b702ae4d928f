#include "weft/autograd/expert_capacity.h"

#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"

namespace weft {

std::int64_t expert_capacity(std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                             double factor) {
  check(tokens >= 0 && topk >= 1 && experts >= 1,
        "expert_capacity: tokens must be at least 0, topk and experts at least 1, got {}, {} and "
        "{}",
        tokens, topk, experts);
  check(factor > 0 && std::isfinite(factor), "expert_capacity: factor must be above 0, got {}",
        factor);
  const double room = static_cast<double>(tokens * topk) * factor / static_cast<double>(experts);
  // What rounding added to a whole number is not another token.
  return static_cast<std::int64_t>(std::ceil(room * (1 - 1e-12)));
}

Routing limit_capacity(const Routing& routing, std::int64_t experts, std::int64_t capacity,
                       DropPolicy policy) {
  const char* op = "limit_capacity";
  detail::check_tensor(op, "probs", routing.probs);
  detail::check_tensor(op, "experts", routing.experts);
  check(experts >= 1 && experts <= kRouterExperts, "{}: experts must be in [1, {}], got {}", op,
        kRouterExperts, experts);
  check(capacity >= 0, "{}: capacity must be at least 0, got {}", op, capacity);
  const Tensor probs = contiguous(routing.probs), chosen = contiguous(routing.experts);
  check(probs.ndim() == 2 && chosen.shape() == probs.shape(),
        "{}: probs and experts must have one shape [tokens, k], got {} and {}", op, probs.shape(),
        chosen.shape());
  check(probs.dtype() == DType::f32 || probs.dtype() == DType::f64,
        "{}: probs must have dtype f32 or f64, got {}", op, probs.dtype());
  check(chosen.dtype() == DType::i64, "{}: experts must have dtype i64, got {}", op,
        chosen.dtype());
  if (capacity >= probs.dim(0)) return {probs, chosen};

  Tensor kept_probs = empty_like(probs);
  const Tensor kept = empty_like(chosen);
  const Tensor scratch = Tensor::empty({chosen.numel() + experts + 1}, DType::i64, chosen.device());
  dispatch<cpu::limit_capacity, cuda::limit_capacity>(probs, chosen, experts, capacity, policy,
                                                      scratch, kept_probs, kept);
  if (recording(probs))
    Tape::record(op, {&probs}, {&kept_probs}, [se = save(kept, "experts")](Backward& b) {
      const Tensor& dy = b.dy();
      b.add(0, where(ge(se.get(), 0.0), dy, Tensor::zeros({}, dy.dtype(), dy.device())));
    });
  return {std::move(kept_probs), kept};
}

}  // namespace weft
