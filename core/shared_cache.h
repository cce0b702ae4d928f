#pragma once
#include <atomic>
#include <mutex>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/size_class.h"
#include "weft/core/storage.h"

namespace weft::detail {

/// What memory_stats() reads, one for each device kind. Relaxed atomics: they order nothing.
struct MemoryCounters {
  std::atomic<std::int64_t> hits{0}, misses{0}, evictions{0}, system_allocs{0}, live{0}, peak{0},
      cached{0};
  std::atomic<std::int64_t> by_category[kCategories] = {};
};
MemoryCounters& counters_of(Device d);

/// The process-wide cache of CPU blocks: for each size class a list of free blocks, newest first,
/// and one list over all of them in order of last use, whose tail is given back first.
class SharedCache {
 public:
  static SharedCache& get();

  /// A free block of the class, or of a larger one where blocks are mappings of their own; or null.
  Storage* take(int size_class);
  void put(Storage* s);
  /// A fresh block from a slab or a mapping of its own; null when the system refuses.
  Storage* make(int size_class);
  /// A header without memory.
  Storage* header();
  void drop_header(Storage* s);
  void evict_all();
  /// Gives back blocks above this many bytes, now and from now on.
  void set_limit(std::int64_t bytes);

 private:
  SharedCache();
  void link(Storage* s);
  void unlink(Storage* s);
  void evict(Storage* s);
  Storage* new_header();
  Slab* slab_for(int size_class);

  std::mutex mutex_;
  Storage* heads_[kClasses] = {};
  Storage *front_ = nullptr, *tail_ = nullptr;
  std::vector<Slab*> slabs_[kClasses];
  std::vector<Storage*> spare_headers_;
  std::int64_t cached_ = 0, limit_;
};

}  // namespace weft::detail
