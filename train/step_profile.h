#pragma once
#include <string>

#include "weft/core/profile.h"
#include "weft/train/train_step.h"

namespace weft::train {

/// Profiles the steps of a run on its first rank, if the options ask for it, and reports them.
class StepProfile {
 public:
  /// `step` must outlive it.
  StepProfile(TrainStep& step, const Options& options, const Ranks& ranks);
  StepProfile(const StepProfile&) = delete;

  /// Runs a step. The first two of the run are not timed: they create what is made on first use.
  StepResult run(std::int64_t number, const data::Batch& rows);
  /// Prints the table of ops and draws the flame graph, if a step was timed.
  void report(const std::string& svg_path) const;

 private:
  TrainStep& step_;
  const Options& options_;
  bool profiles_;
  Device device_;
  std::int64_t steps_ = 0;
  Profiler profiler_;
};

}  // namespace weft::train
