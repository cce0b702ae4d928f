#include "weft/train/time_left.h"

namespace weft::train {
namespace {

// Number of times in [step, last] that something happens which happens every `every` steps and at
// `last`.
double times_from(std::int64_t step, std::int64_t last, std::int64_t every) {
  if (step > last) return 0;
  if (every <= 0) return 1;
  return static_cast<double>(last / every - (step - 1) / every + (last % every != 0));
}

}  // namespace

// The first step creates state that later steps reuse, so it counts only until the second one.
void TimeLeft::add_step(double seconds) {
  if (++steps_seen_ == 2) step_ = {};
  step_.sum += seconds;
  ++step_.count;
}

void TimeLeft::add(Aside aside, double seconds) {
  Mean& mean = asides_[static_cast<std::size_t>(aside)];
  mean.sum += seconds;
  ++mean.count;
}

double TimeLeft::after(std::int64_t step) const {
  double left = step_.value() * static_cast<double>(plan_.steps - step);
  if (plan_.steps_per_evaluation > 0) {
    const Mean& evaluation = mean(Aside::evaluation);
    left += times_from(step, plan_.steps, plan_.eval_every) *
            (evaluation.count ? evaluation.value() : plan_.steps_per_evaluation * step_.value());
  }
  if (plan_.saves)
    left += times_from(step, plan_.steps, plan_.save_every) * mean(Aside::save).value();
  if (const std::int64_t every = plan_.sample_every)
    left +=
        static_cast<double>(plan_.steps / every - (step - 1) / every) * mean(Aside::sample).value();
  return left;
}

}  // namespace weft::train
