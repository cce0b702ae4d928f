#pragma once
#include <cstdint>

namespace weft::train {

/// What a run does beside its steps, which takes time of its own.
enum class Aside : std::uint8_t { evaluation, save };

/// How long a run still takes: steps, evaluations and saves, each by what they took so far.
class TimeLeft {
 public:
  struct Plan {
    std::int64_t steps = 0, eval_every = 0, save_every = 0;  ///< every 0: the last step only
    bool saves = true;
    /// What an evaluation costs in steps, until one has been measured; 0: the run does not
    /// evaluate.
    double steps_per_evaluation = 0;
  };
  explicit TimeLeft(const Plan& plan) : plan_(plan) {}

  void add_step(double seconds);
  void add(Aside aside, double seconds);
  /// Seconds from the end of that step on, before its own evaluation and save.
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
