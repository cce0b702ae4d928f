#include "weft/bench/comm_timeline.h"

#include <algorithm>
#include <deque>

namespace weft::bench {

StepTimes play_steps(const std::vector<StepEvent>& events, const std::vector<double>& op_us,
                     double compute_us, const std::vector<int>& lanes) {
  // A step waits for work left by the previous step; the third step equals all later ones.
  constexpr int kSteps = 3;
  struct Run {
    std::size_t op;
    double begin, end;
  };
  struct Lane {
    std::deque<Run> queue;  // unfinished runs
    double free = 0;
  };
  const std::size_t n = op_us.size();
  std::vector<double> ends(n, 0.0), earlier(n, 0.0);
  std::vector<Lane> all(1);
  if (!lanes.empty())
    all.resize(static_cast<std::size_t>(*std::max_element(lanes.begin(), lanes.end())) + 1);
  const auto lane_of = [&](std::size_t op) -> Lane& {
    return all[lanes.empty() ? 0 : static_cast<std::size_t>(lanes[op])];
  };
  StepTimes out;
  double now = 0;
  for (int step = 0; step < kSteps; ++step) {
    out.exposed_us.assign(n, 0.0);
    const double begin = now;
    double computed = 0;
    const auto compute_until = [&](double us) {
      now += std::max(0.0, us - computed);
      computed = std::max(computed, us);
    };
    const auto wait_until = [&](std::deque<Run>& queue, double end) {
      for (; !queue.empty() && queue.front().begin < end; queue.pop_front()) {
        const Run& run = queue.front();
        out.exposed_us[run.op] += std::max(0.0, std::min(run.end, end) - std::max(run.begin, now));
        if (run.end > end) break;
      }
      now = std::max(now, end);
    };
    std::swap(ends, earlier);
    for (const StepEvent& e : events) {
      compute_until(e.share * compute_us);
      const auto op = static_cast<std::size_t>(e.op);
      if (e.kind == StepEvent::Kind::wait) {
        wait_until(lane_of(op).queue, e.earlier ? earlier[op] : ends[op]);
        continue;
      }
      Lane& lane = lane_of(op);
      const double start = std::max(now, lane.free);
      ends[op] = lane.free = start + op_us[op];
      lane.queue.push_back({op, start, lane.free});
    }
    compute_until(compute_us);
    out.step_us = now - begin;
  }
  return out;
}

}  // namespace weft::bench
