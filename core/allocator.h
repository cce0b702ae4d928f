#pragma once
#include <cstdint>

#include "weft/core/device.h"

namespace weft {

/// What a block of memory is for; each has its own live counter.
enum class Category : std::uint8_t {
  parameter,
  gradient,
  activation,
  optimizer,
  communication,
  other
};
inline constexpr int kCategories = 6;
const char* name(Category c);

/// Blocks allocated on this thread until the end of the scope count as `category`.
class CategoryScope {
 public:
  explicit CategoryScope(Category category);
  ~CategoryScope();
  CategoryScope(const CategoryScope&) = delete;

 private:
  Category previous_;
};

/// Counters of one device. Byte counts are the size-class bytes of what was asked for, so that
/// a run on the meta device can predict them exactly; a larger block that serves a smaller request
/// counts as one of the request's class.
struct MemoryStats {
  std::int64_t hits = 0;           ///< allocations served from a cached block
  std::int64_t misses = 0;         ///< allocations that needed a fresh block
  std::int64_t evictions = 0;      ///< cached blocks given back, least recently used first
  std::int64_t system_allocs = 0;  ///< requests to the operating system or driver
  std::int64_t live_bytes = 0;     ///< in use now
  std::int64_t peak_bytes = 0;  ///< highest live_bytes since start or reset_peak(); to within what
                                ///< other threads allocate at the same moment
  std::int64_t cached_bytes = 0;  ///< free, kept for reuse
  std::int64_t live_by_category[kCategories] = {};
};

MemoryStats memory_stats(Device device = kCpu);
/// Starts a new measurement of peak_bytes at the present live_bytes.
void reset_peak(Device device = kCpu);
/// Blocks of the host's memory kept for reuse above this many bytes are given back. Default: half
/// of the machine's memory. A GPU's are given back when it has no memory left. Blocks of up to 64
/// KiB that a thread keeps for itself (16 MiB at most) do not count.
void set_max_cached_bytes(std::int64_t bytes);
/// Gives every cached block of the device back to the system.
void release_cached_memory(Device device = kCpu);
/// What a request for `bytes` really takes: the size of its class. 0 for 0.
std::int64_t size_class_bytes(std::int64_t bytes);

/// Debug mode: guard zones around every block, fresh floating memory filled with NaN, freed memory
/// poisoned. For blocks allocated from now on. Off by default.
void set_debug_allocator(bool on);
bool debug_allocator();
/// Throws Error when a guard zone was overwritten since start: "allocator: ...".
void check_guard_zones();

}  // namespace weft
