#pragma once
#include <cstdint>

namespace weft::train {

/// Work of a run besides its steps.
enum class Aside : std::uint8_t { evaluation, save };

/// Estimates the remaining time of a run from the mean times of its steps, evaluations and saves.
class TimeLeft {
 public:
  struct Plan {
    std::int64_t steps = 0, eval_every = 0, save_every = 0;  ///< every 0: the last step only
    bool saves = true;
    /// Assumed duration of an evaluation, in steps, until one is measured; 0: the run has none.
    double steps_per_evaluation = 0;
  };
  explicit TimeLeft(const Plan& plan) : plan_(plan) {}

  void add_step(double seconds);
  void add(Aside aside, double seconds);
  /// Seconds left at the end of that step, before its evaluation and save.
  double after(std::int64_t step) const;

 private:
  struct Mean {
    double sum = 0;
    std::int64_t count = 0;
    double value() const { return count ? sum / static_cast<double>(count) : 0; }
  };

  Plan plan_;
  std::int64_t steps_seen_ = 0;
  Mean step_, evaluation_, save_;
};

}  // namespace weft::train
