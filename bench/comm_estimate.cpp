#include "weft/bench/comm_estimate.h"

namespace weft::bench {

Estimate::Estimate(const StepTrace& trace, const distributed::Cluster& cluster, double tflops)
    : trace_(trace), compute_us_(1e-6 * trace.flops / tflops) {
  for (const distributed::FlightEntry& e : trace.calls)
    us_.push_back(collective_us(cluster, e.kind, whole_bytes(e), trace.groups.at(e.group)));
}

StepTimes Estimate::times(int lanes) const {
  std::vector<int> queues;
  for (const distributed::FlightEntry& e : trace_.calls)
    queues.push_back(distributed::queue_of(e.lane, lanes));
  return play_steps(trace_.events, us_, compute_us_, queues);
}

}  // namespace weft::bench
