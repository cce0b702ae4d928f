#include "weft/bench/comm_timeline.h"

#include <algorithm>
#include <deque>

namespace weft::bench {

StepTimes play_steps(const std::vector<StepEvent>& events, const std::vector<double>& op_us,
                     double compute_us) {
  // What one step leaves under way, the next one waits for: the third is like all that follow.
  constexpr int kSteps = 3;
  struct Run {
    std::size_t op;
    double begin, end;
  };
  const std::size_t n = op_us.size();
  std::vector<double> ends(n, 0.0), earlier(n, 0.0);
  std::deque<Run> queue;  // that have not ended
  StepTimes out;
  double now = 0, link_free = 0;
  for (int step = 0; step < kSteps; ++step) {
    out.exposed_us.assign(n, 0.0);
    const double begin = now;
    double computed = 0;
    const auto compute_until = [&](double us) {
      now += std::max(0.0, us - computed);
      computed = std::max(computed, us);
    };
    const auto wait_until = [&](double end) {
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
        wait_until(e.earlier ? earlier[op] : ends[op]);
        continue;
      }
      const double start = std::max(now, link_free);
      ends[op] = link_free = start + op_us[op];
      queue.push_back({op, start, link_free});
    }
    compute_until(compute_us);
    out.step_us = now - begin;
  }
  return out;
}

}  // namespace weft::bench
