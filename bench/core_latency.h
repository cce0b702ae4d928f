#pragma once
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "weft/bench/harness.h"

/// The time that a cache line takes from one processor to another. Cores that share a last-level
/// cache pass it several times as fast as others (50 and 245 ns on an EPYC of Zen 4). A virtual
/// machine does not know which of its processors do, and its host may change it at any time.
namespace weft::bench {

/// Processors that this process may use, the first `most`.
inline std::vector<int> allowed_processors(std::size_t most) {
  std::vector<int> found;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return found;
  for (int i = 0; i < CPU_SETSIZE && found.size() < most; ++i)
    if (CPU_ISSET(i, &set)) found.push_back(i);
  return found;
}

/// Runs the calling thread on one processor.
inline void run_on(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof set, &set);
}

/// Seconds one way: half of a round trip, the median of fifteen means of a thousand.
inline double core_latency(int from, int to) {
  constexpr int kTrips = 1000, kSamples = 15, kEnd = -1;
  struct alignas(128) Cell {
    std::atomic<int> value{0};
  } there, back;
  double seconds = 0;
  std::thread answers([&] {
    run_on(to);
    for (int seen = 0; seen != kEnd;) {
      const int now = there.value.load(std::memory_order_acquire);
      if (now == seen) continue;
      back.value.store(seen = now, std::memory_order_release);
    }
  });
  std::thread asks([&] {
    run_on(from);
    int i = 0;
    seconds = median(kSamples, [&] {
      const auto start = std::chrono::steady_clock::now();
      for (int trip = 0; trip < kTrips; ++trip) {
        there.value.store(++i, std::memory_order_release);
        while (back.value.load(std::memory_order_acquire) != i) {
        }
      }
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      return time.count() / (2 * kTrips);
    });
    there.value.store(kEnd, std::memory_order_release);
  });
  asks.join();
  answers.join();
  return seconds;
}

/// Rows for the nearest and the farthest of the first processors; none where there is one only.
inline void core_latency_rows(Report& report) {
  constexpr std::size_t kMost = 8;
  const std::vector<int> processors = allowed_processors(kMost);
  std::vector<double> seconds;
  for (std::size_t i = 0; i < processors.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      seconds.push_back(core_latency(processors[i], processors[j]));
  if (seconds.empty()) return;
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  report.row("core-to-core latency, nearest", 1e9 * *least, "ns");
  report.row("core-to-core latency, farthest", 1e9 * *most, "ns");
}

}  // namespace weft::bench
