#pragma once
#include "weft/bench/harness.h"
#include "weft/core/cpu/fma_loop.h"

namespace weft::bench {

/// FLOP/s of all threads combined.
inline double fma_peak(const cpu::FmaLoop& loop) {
  constexpr std::int64_t kSteps = 1 << 20;
  const int threads = num_threads();
  const double seconds = seconds_per_call([&] {
    parallel_for(threads, kSteps, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) loop.run(kSteps);
    });
  });
  return loop.flops_per_step * static_cast<double>(kSteps) * threads / seconds;
}

}  // namespace weft::bench
