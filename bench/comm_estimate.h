#pragma once
#include <vector>

#include "weft/bench/comm_timeline.h"
#include "weft/bench/comm_trace.h"
#include "weft/distributed/comm_cost.h"

namespace weft::bench {

/// The times of a traced step on a cluster whose devices compute at a rate.
class Estimate {
 public:
  /// The trace must outlive it.
  Estimate(const StepTrace& trace, const distributed::Cluster& cluster, double tflops);
  /// Of each collective alone.
  const std::vector<double>& collectives_us() const { return us_; }
  double compute_us() const { return compute_us_; }
  /// Of a step, with so many queues for the lanes.
  StepTimes times(int lanes) const;

 private:
  const StepTrace& trace_;
  std::vector<double> us_;
  double compute_us_;
};

}  // namespace weft::bench
