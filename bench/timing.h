#pragma once
#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>
#include <vector>

/// Timing; bench/peers uses it too, so that both sides are measured in the same way.
namespace weft::bench {

/// Measure the processor time of this process instead of wall time. For one thread on an idle
/// machine the two are equal; on a busy machine only processor time is comparable.
inline bool count_processor_time = false;

inline double now() {
  if (count_processor_time) {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  const auto t = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(t).count();
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The median of `runs` samples after two discarded ones: the first calls fill caches, and a median
/// ignores disturbances.
template <class F>
double median(int runs, F&& sample) {
  std::vector<double> samples;
  for (int i = 0; i < runs + 2; ++i) {
    const double value = sample();
    if (i >= 2) samples.push_back(value);
  }
  return median(std::move(samples));
}

/// Seconds per call of f. A sample consists of as many calls as take about 10 ms.
template <class F>
double seconds_per_call(F&& f, int runs = 7) {
  constexpr double kSampleSeconds = 0.01;
  f();
  int calls = 1;
  for (;; calls *= 2) {
    const double start = now();
    for (int i = 0; i < calls; ++i) f();
    if (now() - start >= kSampleSeconds || calls >= 1 << 20) break;
  }
  return median(runs, [&] {
    const double start = now();
    for (int i = 0; i < calls; ++i) f();
    return (now() - start) / calls;
  });
}

}  // namespace weft::bench
