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
  const auto layers = static_cast<std::int64_t>(layers_.size());
  // Nothing is copied from the host: a graph may be capturing.
  has_ =
      Tensor::zeros({layers, 4}, DType::f64, layers_.empty() ? kCpu : layers_[0].tokens.device());
  for (std::int64_t i = 0; i < layers; ++i)
    for (std::int64_t kind = 0; kind < 4; ++kind)
      if (layers_[static_cast<std::size_t>(i)].place[static_cast<std::size_t>(kind)] >= 0)
        has_.select(0, i).select(0, kind).fill_(1);
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

// Each layer's four losses times tokens, and its tokens: (layers, 5), f64.
Tensor RouterStep::loss_sums(const SumCounts& reduce) const {
  const NoGradGuard quiet;
  const Tensor out = Tensor::zeros({has_.dim(0), 5}, DType::f64, has_.device());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    if (!l.loss_sums.defined()) continue;
    const Tensor row = out.select(0, static_cast<std::int64_t>(i));
    row.select(0, 4).copy_(l.loss_sums.select(0, l.losses));
    for (std::int64_t kind = 0; kind < 4; ++kind)
      if (const int place = l.place[static_cast<std::size_t>(kind)]; place >= 0)
        row.select(0, kind).copy_(l.loss_sums.select(0, place));
  }
  if (reduce) reduce(out);
  return out;
}

Tensor RouterStep::losses(const SumCounts& reduce) const {
  const NoGradGuard quiet;
  if (layers_.empty()) return Tensor::zeros({4}, DType::f64);
  const Tensor sums = loss_sums(reduce), tokens = sums.narrow(1, 4, 1);
  const Tensor means = div(sums.narrow(1, 0, 4), maximum(tokens, 1));
  // A layer that nothing trains, as beside adapters, computes no loss.
  const Tensor having = mul(has_, cast(gt(tokens, 0.0), DType::f64));
  return div(sum(means, {0}), maximum(sum(having, {0}), 1));
}

Tensor RouterStep::layer_losses(const SumCounts& reduce) const {
  const NoGradGuard quiet;
  const Tensor sums = loss_sums(reduce);
  return div(sum(sums.narrow(1, 0, 3), {1}), maximum(sums.select(1, 4), 1));
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
