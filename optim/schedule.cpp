#include "weft/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "weft/core/error.h"
#include "weft/optim/groups.h"

namespace weft::optim {

Schedule::Kind Schedule::parse(const std::string& name) {
  return value_of(kScheduleWords, name, "schedule:");
}

void Schedule::validate() const {
  check_setting("schedule", "lr", lr);
  check(min_lr >= 0 && min_lr <= lr, "schedule: min_lr must be in [0, lr {}], got {}", lr, min_lr);
  check(warmup >= 0, "schedule: warmup must be at least 0, got {}", warmup);
  check(steps >= 1, "schedule: steps must be at least 1, got {}", steps);
  check(decay_fraction >= 0 && decay_fraction <= 1,
        "schedule: decay_fraction must be in [0, 1], got {}", decay_fraction);
}

double Schedule::at(std::int64_t step) const {
  const double now = static_cast<double>(std::clamp<std::int64_t>(step, 0, steps));
  const double end = static_cast<double>(steps);
  const double rise = static_cast<double>(std::min(warmup, steps));
  if (now < rise) return lr * now / rise;
  // Fraction of the decay completed before this update: 0 right after warm-up, 1 at the last
  // update.
  const auto progress = [&](double from) {
    return now <= from || end <= from ? 0.0 : (now - from) / (end - from);
  };
  switch (kind) {
    case Kind::constant:
      break;
    case Kind::linear:
      return lr + (min_lr - lr) * progress(rise);
    case Kind::cosine:
      return min_lr + (lr - min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress(rise)));
    case Kind::wsd: {
      // A product just below a whole number is that number.
      const double from = std::max(rise, end - std::floor(decay_fraction * end * (1 + 1e-12)));
      return min_lr + (lr - min_lr) * (1 - std::sqrt(progress(from)));
    }
  }
  return lr;
}

}  // namespace weft::optim
