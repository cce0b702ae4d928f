#include "weft/nn/router_step.h"

#include <algorithm>
#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/nn/walk.h"

namespace weft::nn {

RouterStep::RouterStep(Module& model) {
  detail::for_each_module(model, [&](const std::string& name, Module& m) {
    const auto* router = dynamic_cast<Router*>(&m);
    if (!router) return;
    if (layers_.empty()) experts_ = router->experts();
    check(router->experts() == experts_,
          "router step: all routers must have the same number of experts, got {} and {} at {}",
          experts_, router->experts(), name);
    Layer layer{router->weight,        router->expert_bias, router->tokens_per_expert,
                router->global_counts, router->loss_sums,   {-1, -1, -1, -1},
                router->losses()};
    int number = 0;
    for (const BalanceLoss& l : router->config.balance)
      if (l.coefficient > 0) layer.place[static_cast<std::size_t>(l.scope)] = number++;
    if (router->config.z_loss > 0) layer.place[3] = number;
    layers_.push_back(std::move(layer));
  });
}

bool RouterStep::has(std::size_t kind) const {
  return std::any_of(layers_.begin(), layers_.end(),
                     [&](const Layer& l) { return l.place[kind] >= 0; });
}

std::vector<std::pair<const char*, std::int64_t>> RouterStep::balance_kinds() const {
  constexpr const char* kNames[] = {"aux_batch_loss", "aux_seq_loss", "aux_global_loss"};
  std::vector<std::pair<const char*, std::int64_t>> out;
  for (std::size_t kind = 0; kind < 3; ++kind)
    if (has(kind)) out.emplace_back(kNames[kind], static_cast<std::int64_t>(kind));
  return out;
}

RouterLosses RouterStep::losses(const SumCounts& reduce) const {
  const NoGradGuard quiet;
  const auto layers = static_cast<std::int64_t>(layers_.size());
  // Of each layer and kind the loss times tokens, and the tokens; 0 where a layer lacks the kind.
  const Tensor sums =
      Tensor::zeros({layers, 4, 2}, DType::f64, layers > 0 ? layers_[0].tokens.device() : kCpu);
  for (std::int64_t i = 0; i < layers; ++i) {
    const Layer& l = layers_[static_cast<std::size_t>(i)];
    for (std::int64_t kind = 0; kind < 4; ++kind) {
      const int place = l.place[static_cast<std::size_t>(kind)];
      if (place < 0) continue;
      const Tensor pair = sums.select(0, i).select(0, kind);
      pair.select(0, 0).copy_(l.loss_sums.select(0, place));
      pair.select(0, 1).copy_(l.loss_sums.select(0, l.losses));
    }
  }
  if (reduce) reduce(sums);
  const Tensor tokens = sums.select(2, 1), means = div(sums.select(2, 0), maximum(tokens, 1));
  // A layer that nothing trains, as beside adapters, counts no tokens.
  const Tensor trained = sum(cast(gt(tokens, 0.0), DType::f64), {0});
  return {div(sum(means, {0}), maximum(trained, 1)), sum(means.narrow(1, 0, 3), {1})};
}

Tensor RouterStep::finish(double rate, const SumCounts& reduce) {
  check(rate >= 0 && std::isfinite(rate), "router step: rate must be at least 0, got {}", rate);
  if (layers_.empty()) return Tensor::zeros({0});
  const NoGradGuard quiet;
  const auto layers = static_cast<std::int64_t>(layers_.size());
  const Device device = layers_[0].tokens.device();
  const Tensor counts = Tensor::empty({layers, experts_}, DType::i64, device);
  for (std::int64_t i = 0; i < layers; ++i)
    counts.select(0, i).copy_(layers_[static_cast<std::size_t>(i)].tokens);
  if (reduce) reduce(counts);

  // In integers, so the sign of mean - count is exact.
  const Tensor total = sum(counts, {1}, true);
  const Tensor above = sub(total, mul(counts, static_cast<double>(experts_)));
  const Tensor move =
      mul(sub(cast(gt(above, 0.0), DType::f32), cast(lt(above, 0.0), DType::f32)), rate);
  for (std::int64_t i = 0; i < layers; ++i) {
    const Layer& l = layers_[static_cast<std::size_t>(i)];
    if (l.expert_bias.defined() && l.weight.requires_grad() && rate > 0)
      l.expert_bias.add_(move.select(0, i));
    l.tokens.zero_();
    if (l.global.defined()) l.global.zero_();
    if (l.loss_sums.defined()) l.loss_sums.zero_();
  }
  const Tensor busiest = cast(max(counts, 1), DType::f64),
               sums = cast(total, DType::f64).view({layers});
  return cast(div(mul(busiest, static_cast<double>(experts_)), maximum(sums, 1)), DType::f32);
}

Tensor update_expert_bias(Module& model, double rate, const SumCounts& reduce) {
  return RouterStep(model).finish(rate, reduce);
}

}  // namespace weft::nn
