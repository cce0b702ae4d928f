#include "weft/autograd/router.h"

#include <algorithm>

#include "weft/autograd/operand.h"
#include "weft/autograd/sinkhorn.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"

namespace weft {
namespace {

// route() that ranks experts by `select` (null: by the scores).
Routing route_by(const char* op, const Tensor& input, const Tensor& select,
                 const Tensor& expert_bias, const RouterOptions& options, const Tensor& padding) {
  const Tensor logits = contiguous(input);
  const Device device = logits.device();
  const Shape shape{logits.dim(0), options.topk};
  Tensor probs =
      Tensor::empty(shape, logits.dtype() == DType::f64 ? DType::f64 : DType::f32, device);
  const Tensor experts = Tensor::empty(shape, DType::i64, device);
  dispatch<cpu::route_fwd, cuda::route_fwd>(
      logits, select, expert_bias.defined() ? contiguous(expert_bias) : expert_bias,
      padding.defined() ? contiguous(padding) : padding, options, probs, experts);
  if (recording(logits))
    Tape::record(
        op, {&logits}, {&probs},
        [sx = save(logits, "logits"), se = save(experts, "experts"), options](Backward& b) {
          b.once_differentiable();
          const Tensor& x = sx.get();
          Tensor dx = empty_like(x);
          dispatch<cpu::route_bwd, cuda::route_bwd>(x, se.get(), contiguous(b.dy()), options, dx);
          b.add(0, std::move(dx));
        });
  return {std::move(probs), experts};
}

}  // namespace

void detail::check_router(const char* op, std::int64_t experts, const RouterOptions& o,
                          bool has_bias) {
  const std::int64_t k = o.topk, G = o.groups;
  check(experts >= 1 && experts <= kRouterExperts, "{}: experts must be in [1, {}], got {}", op,
        kRouterExperts, experts);
  check(k >= 1 && k <= kRouterTopk, "{}: topk must be in [1, {}], got {}", op, kRouterTopk, k);
  check(k <= experts, "{}: topk must be at most the number of experts {}, got {}", op, experts, k);
  check(k > 1 || o.score != RouterScore::softmax || o.pre_softmax,
        "{}: topk 1 with softmax needs pre_softmax = true (a softmax over one expert is always 1 "
        "and has no gradient), got false",
        op);
  check(!o.pre_softmax || o.score == RouterScore::softmax,
        "{}: pre_softmax goes with score softmax only, got {}", op,
        o.score == RouterScore::sigmoid ? "sigmoid" : "sqrt_softplus");
  check(!has_bias || o.score != RouterScore::softmax,
        "{}: an expert bias goes with score sigmoid or sqrt_softplus, got softmax", op);
  check(o.normalise || o.score != RouterScore::softmax,
        "{}: normalise = false goes with score sigmoid or sqrt_softplus, got softmax", op);
  check(o.scaling > 0 && std::isfinite(o.scaling), "{}: scaling must be above 0, got {}", op,
        o.scaling);
  if (G == 0) {
    check(o.group_topk == 0, "{}: group_topk needs groups, got group_topk {} and no groups", op,
          o.group_topk);
    check(o.group_best == 0, "{}: group_best needs groups, got group_best {} and no groups", op,
          o.group_best);
    return;
  }
  check(G >= 1 && experts % G == 0, "{}: groups must divide the number of experts {}, got {}", op,
        experts, G);
  check(o.group_topk >= 1 && o.group_topk <= G, "{}: group_topk must be in [1, groups {}], got {}",
        op, G, o.group_topk);
  const std::int64_t most = std::min(experts / G, kRouterTopk);
  check(o.group_best >= 0 && o.group_best <= most,
        "{}: group_best must be in [0, {}] (experts of a group, at most {}), got {}", op, most,
        kRouterTopk, o.group_best);
  check(o.group_topk <= kRouterTopk, "{}: group_topk must be at most {}, got {}", op, kRouterTopk,
        o.group_topk);
  check(k >= o.group_topk || o.group_best > 0,
        "{}: topk must be at least group_topk {} (a group's score is the sum of its topk / "
        "group_topk best), got {}",
        op, o.group_topk, k);
  check(k <= o.group_topk * (experts / G),
        "{}: topk must be at most {} (group_topk {} groups of {} experts), got {}", op,
        o.group_topk * (experts / G), o.group_topk, experts / G, k);
}

void detail::check_router_logits(const char* op, const Tensor& logits, const Tensor& padding) {
  check_tensor(op, "logits", logits);
  if (!is_compute(logits.dtype())) throw_bad_dtype(op, logits.dtype(), kFloatingNames);
  check(logits.ndim() == 2, "{}: logits must have shape [tokens, experts], got {}", op,
        logits.shape());
  if (!padding.defined()) return;
  const Shape tokens{logits.dim(0)};
  check(padding.shape() == tokens, "{}: padding must have shape {} (tokens of logits {}), got {}",
        op, tokens, logits.shape(), padding.shape());
  check(padding.dtype() == DType::boolean, "{}: padding must have dtype bool, got {}", op,
        padding.dtype());
  check(padding.device() == logits.device(), "{}: padding must be on device {} like logits, got {}",
        op, logits.device(), padding.device());
}

Routing route(const Tensor& logits, const Tensor& expert_bias, const RouterOptions& options,
              const Tensor& padding) {
  detail::check_router_logits("route", logits, padding);
  detail::check_router("route", logits.dim(1), options, expert_bias.defined());
  if (expert_bias.defined()) {
    const Shape experts{logits.dim(1)};
    check(expert_bias.shape() == experts,
          "route: expert_bias must have shape {} (experts of logits {}), got {}", experts,
          logits.shape(), expert_bias.shape());
    check(expert_bias.dtype() == DType::f32,
          "route: expert_bias must have dtype f32 (its steps are lost in a narrower one), got {}",
          expert_bias.dtype());
    check(expert_bias.device() == logits.device(),
          "route: expert_bias must be on device {} like logits, got {}", logits.device(),
          expert_bias.device());
  }
  return route_by("route", logits, {}, expert_bias, options, padding);
}

Routing route_sinkhorn(const Tensor& logits, std::int64_t topk, bool balanced,
                       const Tensor& padding) {
  RouterOptions o{.topk = topk, .pre_softmax = true};
  if (topk == 1) o = {.topk = 1, .score = RouterScore::sigmoid};
  detail::check_router_logits("route_sinkhorn", logits, padding);
  detail::check_router("route_sinkhorn", logits.dim(1), o, false);
  const Tensor even = balanced ? sinkhorn(logits.detach(), padding) : Tensor();
  return route_by("route_sinkhorn", logits, even, {}, o, padding);
}

}  // namespace weft
