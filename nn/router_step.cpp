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

Tensor RouterStep::losses() const {
  const NoGradGuard quiet;
  Tensor out;
  for (std::size_t kind = 0; kind < 4; ++kind) {
    int having = 0;
    for (const Layer& l : layers_) having += l.place[kind] >= 0;
    for (const Layer& l : layers_) {
      if (l.place[kind] < 0) continue;
      if (!out.defined()) out = Tensor::zeros({4}, l.loss_sums.dtype(), l.loss_sums.device());
      const Tensor passes = maximum(l.loss_sums.select(0, l.losses), 1);
      out.select(0, static_cast<std::int64_t>(kind))
          .add_(div(l.loss_sums.select(0, l.place[kind]), passes), 1.0 / having);
    }
  }
  return out.defined() ? out : Tensor::zeros({4});
}

Tensor RouterStep::layer_losses() const {
  const NoGradGuard quiet;
  const Tensor first = layers_.empty() ? Tensor() : layers_[0].loss_sums;
  const Tensor out = Tensor::zeros({static_cast<std::int64_t>(layers_.size())},
                                   first.defined() ? first.dtype() : DType::f32,
                                   first.defined() ? first.device() : kCpu);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    for (std::size_t kind = 0; kind < 3; ++kind)
      if (l.place[kind] >= 0)
        out.select(0, static_cast<std::int64_t>(i))
            .add_(div(l.loss_sums.select(0, l.place[kind]),
                      maximum(l.loss_sums.select(0, l.losses), 1)));
  }
  return out;
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
