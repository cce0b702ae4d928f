#pragma once
#include <numeric>
#include <vector>

namespace weft::bench {

/// An event on a rank's own thread: it starts a collective or waits for one.
struct StepEvent {
  enum class Kind : unsigned char { call, wait };
  Kind kind = Kind::call;
  int op = 0;            ///< identifies a collective of the step
  double share = 0;      ///< fraction of the step's compute that precedes it
  bool earlier = false;  ///< wait: for the collective of the previous step
};

struct StepTimes {
  std::vector<double> exposed_us;  ///< per collective: the part of its time during which the rank
                                   ///< waits
  double step_us = 0;

  double all_exposed_us() const {
    return std::accumulate(exposed_us.begin(), exposed_us.end(), 0.0);
  }
};

/// The duration of a step, in a run of equal steps, when compute takes compute_us and collective i
/// takes op_us[i]. Collectives of a lane run one after another in call order, concurrently with
/// other lanes and with compute; a wait ends when its collective and all earlier ones of the lane
/// have finished. `lanes`: the queue of each collective, from 0; empty: a single one.
StepTimes play_steps(const std::vector<StepEvent>& events, const std::vector<double>& op_us,
                     double compute_us, const std::vector<int>& lanes = {});

}  // namespace weft::bench
