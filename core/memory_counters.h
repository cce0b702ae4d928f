#pragma once
// What memory_stats() counts, as the allocator and its caches see it.
#include <atomic>

#include "weft/core/allocator.h"
#include "weft/core/cuda.h"

namespace weft::detail {

/// A sum with many writers and few readers. The first thread that counts anything, in most programs
/// the only one, avoids locked instructions (5 ns each, five per block).
class Counter {
 public:
  void add(std::int64_t n, bool alone = counts_alone()) {
    if (alone)
      own_.store(own_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    else
      others_.fetch_add(n, std::memory_order_relaxed);
  }
  std::int64_t get() const {
    return own_.load(std::memory_order_relaxed) + others_.load(std::memory_order_relaxed);
  }
  /// True on that first thread.
  static bool counts_alone() {
    static constinit std::atomic<bool> taken{false};
    static constinit thread_local enum { unknown, first, later } role = unknown;
    if (role == unknown) [[unlikely]]
      role = taken.exchange(true) ? later : first;
    return role == first;
  }

 private:
  std::atomic<std::int64_t> own_{0}, others_{0};
};

/// The counters behind memory_stats(), one set per device and MemoryDomain. Relaxed atomics: they
/// order nothing.
struct MemoryCounters {
  Counter hits, misses, live, by_category[kCategories];
  std::atomic<std::int64_t> peak{0};
};
inline constexpr int kMemoryDomains = 65;
inline constexpr int kMemories = Device::kKinds * cuda::kMaxDevices;
extern MemoryCounters memory_counters[kMemoryDomains][kMemories];
inline int index_of(Device d) { return static_cast<int>(d.kind) * cuda::kMaxDevices + d.index; }
/// Throws Error unless the index of the device is in range.
void check_index(Device device);
/// The counters of this thread's domain.
extern constinit thread_local MemoryCounters* domain_counters;
inline MemoryCounters& counters_of(Device d) { return domain_counters[index_of(d)]; }

/// The counters of the memory underneath, which all domains share.
struct CacheCounters {
  Counter evictions, system_allocs;
  Counter made;  ///< bytes of all blocks but uncounted ones; a live block counts by its request
};
extern CacheCounters cache_counters[kMemories];
inline CacheCounters& cache_counters_of(Device d) { return cache_counters[index_of(d)]; }

/// What this thread's new blocks count as.
extern constinit thread_local Category current_category;

}  // namespace weft::detail
