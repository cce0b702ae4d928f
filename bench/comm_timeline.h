#pragma once
#include <vector>

namespace weft::bench {

/// Something that a rank's own thread does in a step: it calls a collective, or waits for one.
struct StepEvent {
  enum class Kind : unsigned char { call, wait };
  Kind kind = Kind::call;
  int op = 0;            ///< a number of its own for each collective of the step
  double share = 0;      ///< of the step's computing that comes before it
  bool earlier = false;  ///< wait: for the collective of the step before
};

struct StepTimes {
  std::vector<double> exposed_us;  ///< by collective: its time during which the rank waits
  double step_us = 0;
};

/// How long a step takes when computing takes compute_us and collective i op_us[i], in a run of
/// such steps. Collectives of a lane are made one after the other in the order of their calls,
/// beside those of other lanes and what the rank computes; a wait ends when its collective has, and
/// so those before it. `lanes`: by collective, from 0; empty: there is one.
StepTimes play_steps(const std::vector<StepEvent>& events, const std::vector<double>& op_us,
                     double compute_us, const std::vector<int>& lanes = {});

}  // namespace weft::bench
