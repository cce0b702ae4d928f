#pragma once
#include "weft/bench/harness.h"
#include "weft/core/cpu/fma_loop.h"

namespace weft::bench {

/// FLOP/s of all threads combined in one run of `steps`.
inline double fma_rate(const cpu::FmaLoop& loop, std::int64_t steps) {
  const int threads = num_threads();
  const double start = now();
  parallel_for(threads, steps, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) loop.run(steps);
  });
  return loop.flops_per_step * static_cast<double>(steps) * threads / (now() - start);
}

/// The median of some long runs.
inline double fma_peak(const cpu::FmaLoop& loop) {
  return median(7, [&] { return fma_rate(loop, 1 << 22); });
}

}  // namespace weft::bench
