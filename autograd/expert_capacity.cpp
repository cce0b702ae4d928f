#include "weft/autograd/expert_capacity.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"

namespace weft {

namespace {

void check_factor(const char* op, double factor) {
  constexpr double kMost = 1e6;  // slots times this is a number of slots
  check(factor > 0 && factor <= kMost, "{}: factor must be in (0, {}], got {}", op, kMost, factor);
}

struct Limit {
  std::int64_t capacity = 0;
  double factor = 0;  // above 0: the capacity follows from the slots that have an expert
};

Routing limited(const char* op, const Routing& routing, std::int64_t experts, const Limit& limit,
                DropPolicy policy) {
  detail::check_tensor(op, "probs", routing.probs);
  detail::check_tensor(op, "experts", routing.experts);
  check(experts >= 1 && experts <= kRouterExperts, "{}: experts must be in [1, {}], got {}", op,
        kRouterExperts, experts);
  check(limit.capacity >= 0, "{}: capacity must be at least 0, got {}", op, limit.capacity);
  const Tensor probs = contiguous(routing.probs), chosen = contiguous(routing.experts);
  check(probs.ndim() == 2 && chosen.shape() == probs.shape(),
        "{}: probs and experts must have one shape [tokens, k], got {} and {}", op, probs.shape(),
        chosen.shape());
  check(probs.dtype() == DType::f32 || probs.dtype() == DType::f64,
        "{}: probs must have dtype f32 or f64, got {}", op, probs.dtype());
  check(chosen.dtype() == DType::i64, "{}: experts must have dtype i64, got {}", op,
        chosen.dtype());
  // With a factor the capacity depends on how many slots have an expert; the host never reads that.
  const bool fits = limit.factor == 0 && limit.capacity >= probs.dim(0);
  if (fits || probs.numel() == 0) return {probs, chosen};

  Tensor kept_probs = empty_like(probs);
  const Tensor kept = empty_like(chosen);
  const Tensor scratch = Tensor::empty({chosen.numel() + experts + 1}, DType::i64, chosen.device());
  dispatch<cpu::limit_capacity, cuda::limit_capacity>(
      LimitCapacityIn{.probs = probs,
                      .experts = chosen,
                      .count = experts,
                      .capacity = limit.capacity,
                      .factor = limit.factor,
                      .policy = policy},
      LimitCapacityOut{.probs = kept_probs, .experts = kept, .scratch = scratch});
  if (recording(probs))
    Tape::record(op, {&probs}, {&kept_probs}, [se = save(kept, "experts")](Backward& b) {
      const Tensor& dy = b.dy();
      b.add(0, where(ge(se.get(), 0.0), dy, Tensor::zeros({}, dy.dtype(), dy.device())));
    });
  return {std::move(kept_probs), kept};
}

}  // namespace

std::int64_t expert_capacity(std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                             double factor) {
  check(tokens >= 0 && topk >= 1 && experts >= 1,
        "expert_capacity: tokens must be at least 0, topk and experts at least 1, got {}, {} and "
        "{}",
        tokens, topk, experts);
  check_factor("expert_capacity", factor);
  return capacity_per_expert(tokens * topk, experts, factor);
}

Routing limit_capacity(const Routing& routing, std::int64_t experts, std::int64_t capacity,
                       DropPolicy policy) {
  return limited("limit_capacity", routing, experts, {.capacity = capacity}, policy);
}

Routing limit_capacity_factor(const Routing& routing, std::int64_t experts, double factor,
                              DropPolicy policy) {
  check_factor("limit_capacity_factor", factor);
  return limited("limit_capacity_factor", routing, experts, {.factor = factor}, policy);
}

}  // namespace weft
