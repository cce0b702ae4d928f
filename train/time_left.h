#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace weft::train {

/// Work of a run besides its steps.
enum class Aside : std::uint8_t { evaluation, save, sample };

/// Estimates the remaining time of a run from the mean times of its steps, evaluations, saves and
/// samples.
class TimeLeft {
 public:
  struct Plan {
    std::int64_t steps = 0, eval_every = 0, save_every = 0;  ///< every 0: the last step only
    bool saves = true;
    std::int64_t sample_every = 0;  ///< 0: none
    /// Assumed duration of an evaluation, in steps, until one is measured; 0: the run has none.
    double steps_per_evaluation = 0;
  };
  explicit TimeLeft(const Plan& plan) : plan_(plan) {}

  void add_step(double seconds);
  void add(Aside aside, double seconds);
  /// Seconds left at the end of that step, before its evaluation, save and sample.
  double after(std::int64_t step) const;

 private:
  struct Mean {
    double sum = 0;
    std::int64_t count = 0;
    double value() const { return count ? sum / static_cast<double>(count) : 0; }
  };

  Plan plan_;
  std::int64_t steps_seen_ = 0;
  Mean step_;
  std::array<Mean, 3> asides_;  // by Aside
  const Mean& mean(Aside aside) const { return asides_[static_cast<std::size_t>(aside)]; }
};

}  // namespace weft::train
