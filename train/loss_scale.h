#pragma once
#include <array>

#include "weft/optim/clip.h"

namespace weft::train {

struct LossScaleOptions {
  double initial = 65536;
  std::int64_t growth_steps = 2000;  ///< steps in a row without overflow until the scale doubles
};

/// A factor for a loss whose gradients a 16-bit dtype would round to 0. It halves after a step
/// whose scaled gradients overflow, which the optimizer skips, and doubles after enough good ones.
/// It lives on the device of the gradients, and the host never waits for it. Ranks that see the
/// same norm have the same scale. A power of two changes no bit of a result that is in range.
///
///   objective.backward(a cotangent times scale.value());
///   const optim::GradClip clip = scale.unscaled(optimizer.finish(), {}, max_norm);
///   optimizer.step(clip);
///   scale.update(clip);
///
/// Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.
class LossScale {
 public:
  /// If a step overflows at this scale, the gradients themselves are not finite.
  static constexpr double kLeast = 1;

  /// Throws Error unless initial is at least kLeast and finite, and growth_steps at least 1.
  LossScale(const LossScaleOptions& options, Device device);

  /// One f64, which update() changes.
  Tensor value() const { return state_.select(0, 0); }
  /// The number of steps that overflowed, one f64.
  Tensor skipped() const { return state_.select(0, 2); }
  /// Norm and scale of gradients that are value() times too large and still have to be multiplied
  /// by `factor` (one f64; null: 1). max_norm 0 sets no limit.
  optim::GradClip unscaled(const optim::GradClip& clip, const Tensor& factor,
                           double max_norm) const;
  /// Call it after the step that took the clip.
  void update(const optim::GradClip& clip);

  /// For a checkpoint: the scale, the good steps in a row, the skipped steps.
  std::array<double, 3> state() const;
  void load(const std::array<double, 3>& state);

 private:
  LossScaleOptions options_;
  Tensor state_;  ///< f64
};

/// The clip of gradients that still have to be multiplied by `factor`; its scale includes that
/// factor. As in optim::GradClip, the scale is NaN if the norm is not finite.
optim::GradClip times(const optim::GradClip& clip, const Tensor& factor, double max_norm);

}  // namespace weft::train
