#include "weft/train/loss_scale.h"

#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"

namespace weft::train {

LossScale::LossScale(const LossScaleOptions& options, Device device) : options_(options) {
  check(options.initial >= kLeast && std::isfinite(options.initial),
        "loss_scale: initial must be at least {} and finite, got {}", kLeast, options.initial);
  check(options.growth_steps >= 1, "loss_scale: growth_steps must be at least 1, got {}",
        options.growth_steps);
  const CategoryScope category(Category::optimizer);
  state_ = Tensor::zeros({3}, DType::f64, device);
  value().fill_(options.initial);
}

optim::GradClip LossScale::unscaled(const optim::GradClip& clip, const Tensor& factor,
                                    double max_norm) const {
  if (!clip.norm.defined()) return clip;
  const NoGradGuard off;
  const Tensor one = Tensor::full({}, 1, DType::f64, state_.device());
  return times(clip, div(factor.defined() ? factor : one, value()), max_norm);
}

void LossScale::update(const optim::GradClip& clip) {
  if (!clip.scale.defined()) return;
  const NoGradGuard off;
  const Tensor fits = eq(sub(clip.scale, clip.scale), 0.0).view({});
  const Tensor good = where(fits, add(state_.select(0, 1), 1), 0.0);
  const Tensor grows = ge(good, static_cast<double>(options_.growth_steps));
  const Tensor larger = where(grows, mul(value(), 2), value());
  value().copy_(where(fits, larger, maximum(mul(value(), 0.5), kLeast)));
  state_.select(0, 1).copy_(where(grows, 0.0, good));
  skipped().add_(sub(Tensor::full({}, 1, DType::f64, state_.device()), fits.to(DType::f64)));
}

std::array<double, 3> LossScale::state() const {
  std::array<double, 3> out{};
  state_.copy_to(out);
  return out;
}

void LossScale::load(const std::array<double, 3>& state) {
  state_.copy_(Tensor::from<double>(state, {3}));
}

optim::GradClip times(const optim::GradClip& clip, const Tensor& factor, double max_norm) {
  const Tensor norm = mul(clip.norm, factor);
  Tensor scale = add(factor, sub(norm, norm));
  if (max_norm > 0)
    scale = mul(
        scale,
        minimum(div(Tensor::full({}, max_norm, DType::f64, norm.device()), add(norm, 1e-6)), 1));
  return {norm, scale};
}

}  // namespace weft::train
