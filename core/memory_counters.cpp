#include "weft/core/memory_counters.h"

#include "weft/core/error.h"
#include "weft/core/memory_domain.h"

namespace weft {
namespace detail {

constinit MemoryCounters memory_counters[kMemoryDomains][kMemories];
constinit CacheCounters cache_counters[kMemories];
constinit thread_local MemoryCounters* domain_counters = memory_counters[0];
constinit thread_local Category current_category = Category::other;

void check_index(Device device) {
  check(device.index >= 0 && device.index < cuda::kMaxDevices,
        "device: index must be in [0, {}), got {}", cuda::kMaxDevices, device.index);
}

}  // namespace detail

namespace {

constinit thread_local int memory_domain = 0;  // 0: none

void set_domain(int domain) {
  memory_domain = domain;
  detail::domain_counters = detail::memory_counters[domain];
}

}  // namespace

const char* name(Category c) {
  constexpr const char* kNames[kCategories] = {"parameter", "gradient",      "activation",
                                               "optimizer", "communication", "other"};
  return kNames[static_cast<int>(c)];
}

CategoryScope::CategoryScope(Category category) : previous_(detail::current_category) {
  detail::current_category = category;
}
CategoryScope::~CategoryScope() { detail::current_category = previous_; }

MemoryDomain::MemoryDomain(int number) : previous_(memory_domain) {
  check(number >= 0, "MemoryDomain: number must be at least 0, got {}", number);
  set_domain(1 + number % (detail::kMemoryDomains - 1));
}
MemoryDomain::~MemoryDomain() { set_domain(previous_); }

MemoryStats memory_stats(Device device) {
  detail::check_index(device);
  MemoryStats s;
  std::int64_t live = 0;
  for (int d = 0; d < detail::kMemoryDomains; ++d) {
    const detail::MemoryCounters& c = detail::memory_counters[d][detail::index_of(device)];
    live += c.live.get();
    if (memory_domain != 0 && memory_domain != d) continue;
    s.hits += c.hits.get();
    s.misses += c.misses.get();
    s.live_bytes += c.live.get();
    s.peak_bytes += c.peak.load(std::memory_order_relaxed);
    for (int i = 0; i < kCategories; ++i) s.live_by_category[i] += c.by_category[i].get();
  }
  const detail::CacheCounters& shared = detail::cache_counters_of(device);
  s.evictions = shared.evictions.get();
  s.system_allocs = shared.system_allocs.get();
  s.cached_bytes = device.is_meta() ? 0 : shared.made.get() - live;
  return s;
}

void reset_peak(Device device) {
  detail::check_index(device);
  for (int d = 0; d < detail::kMemoryDomains; ++d) {
    detail::MemoryCounters& c = detail::memory_counters[d][detail::index_of(device)];
    if (memory_domain == 0 || memory_domain == d) c.peak = c.live.get();
  }
}

}  // namespace weft
