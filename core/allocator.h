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

/// Counters of one device. Byte counts use the size class of each request, so that a run on the
/// meta device can predict them exactly. A larger block that serves a smaller request counts as the
/// class of the request.
struct MemoryStats {
  std::int64_t hits = 0;           ///< allocations served from a cached block
  std::int64_t misses = 0;         ///< allocations that needed a new block
  std::int64_t evictions = 0;      ///< cached blocks returned to the system, least recently used
                                   ///< first
  std::int64_t system_allocs = 0;  ///< requests to the operating system or driver
  std::int64_t live_bytes = 0;     ///< in use now
  std::int64_t peak_bytes = 0;    ///< highest live_bytes since start or reset_peak(); other threads
                                  ///< that allocate at the same moment may shift it
  std::int64_t cached_bytes = 0;  ///< free, kept for reuse
  std::int64_t live_by_category[kCategories] = {};
};

MemoryStats memory_stats(Device device = kCpu);
/// Restarts the measurement of peak_bytes at the current live_bytes.
void reset_peak(Device device = kCpu);
/// Limits the cache of host memory: blocks above this many bytes are returned to the system.
/// Default: half of the machine's memory. A GPU's cache is emptied when the GPU runs out of memory.
/// The limit excludes the blocks of up to 64 KiB that each thread caches for itself (16 MiB at
/// most).
void set_max_cached_bytes(std::int64_t bytes);
/// Returns every cached block of the device to the system.
void release_cached_memory(Device device = kCpu);
/// The bytes that a request for `bytes` takes: the size of its class. 0 for 0.
std::int64_t size_class_bytes(std::int64_t bytes);

/// Debug mode: guard zones around every block, NaN in fresh floating-point memory, a poison pattern
/// in freed memory. It applies to blocks allocated from now on. Off by default.
void set_debug_allocator(bool on);
bool debug_allocator();
/// Throws Error "allocator: ..." when a guard zone has been overwritten since start.
void check_guard_zones();

}  // namespace weft
