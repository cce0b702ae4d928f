#pragma once
#include <atomic>
#include <mutex>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/cuda.h"
#include "weft/core/size_class.h"
#include "weft/core/storage.h"

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_poison_memory_region(const volatile void* p, std::size_t bytes);
extern "C" void __asan_unpoison_memory_region(const volatile void* p, std::size_t bytes);
#endif

namespace weft::detail {

/// A sum that many threads add to and few read. The first thread that counts anything, in most
/// programs the only one, does so without a locked instruction (5 ns each, five to a block).
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
  /// Is the calling thread that first one?
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

/// What memory_stats() reads, one for each device and MemoryDomain. Relaxed atomics: they order
/// nothing.
struct MemoryCounters {
  Counter hits, misses, live, by_category[kCategories];
  std::atomic<std::int64_t> peak{0};
};
inline constexpr int kMemoryDomains = 65;
inline constexpr int kMemories = Device::kKinds * cuda::kMaxDevices;
extern MemoryCounters memory_counters[kMemoryDomains][kMemories];
inline int index_of(Device d) { return static_cast<int>(d.kind) * cuda::kMaxDevices + d.index; }
/// Those of this thread's domain.
extern constinit thread_local MemoryCounters* domain_counters;
inline MemoryCounters& counters_of(Device d) { return domain_counters[index_of(d)]; }

/// The same for the memory behind them, which all domains share.
struct CacheCounters {
  Counter evictions, system_allocs;
  Counter made;  ///< bytes of all blocks, live ones as they are counted
};
extern CacheCounters cache_counters[kMemories];
inline CacheCounters& cache_counters_of(Device d) { return cache_counters[index_of(d)]; }

/// Size of the red zone between neighbouring blocks, on the host and on an imitated GPU.
/// AddressSanitizer reports accesses to red zones, to the slack behind the requested bytes and to
/// free blocks.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr std::int64_t kRedZone = 256;
inline void forbid(void* p, std::int64_t bytes) {
  __asan_poison_memory_region(p, static_cast<std::size_t>(bytes));
}
inline void permit(void* p, std::int64_t bytes) {
  __asan_unpoison_memory_region(p, static_cast<std::size_t>(bytes));
}
#else
inline constexpr std::int64_t kRedZone = 0;
inline void forbid(void*, std::int64_t) {}
inline void permit(void*, std::int64_t) {}
#endif

/// The process-wide cache of the blocks of one memory: the host's, or what one stream of a GPU uses
/// (a block freed there is safe to use again there at once: its kernels run one after another). For
/// each size class a list of free blocks, newest first, and one list over all of them in order of
/// last use, whose tail is given back first.
class SharedCache {
 public:
  /// The host's.
  static SharedCache& get();
  /// A stream's.
  static SharedCache& of(const cuda::Stream& stream);
  /// Where a new block of the device comes from on this thread.
  static SharedCache& source(Device device);
  /// Until end_pool() what this thread allocates on the stream's device comes from a cache of its
  /// own, which nobody else takes from; blocks of any GPU's caches that it frees are kept there
  /// too.
  static SharedCache* begin_pool(const cuda::Stream& stream);
  static void end_pool();
  /// For such a pool, when nothing uses its memory any more: gives its blocks back, those that are
  /// live when they are freed. The last one takes the pool along.
  void retire();
  /// Gives back the free blocks of all streams of a device, once they are done with. Inside a
  /// capture, which cannot wait, without those that another stream may still use.
  static void evict_device(Device device);

  /// A free block of the class, or of a larger one where blocks are mappings of their own; or null.
  Storage* take(int size_class);
  void put(Storage* s);
  /// Says that a block from here will be used by kernels that work on this many bytes of it.
  void mark_usable(const Storage* s, std::int64_t bytes);
  /// A fresh block from a slab or a mapping of its own; null when the system refuses.
  Storage* make(int size_class);
  /// A header without memory.
  Storage* header();
  void drop_header(Storage* s);
  void evict_all();
  /// Gives back blocks above this many bytes, now and from now on.
  void set_limit(std::int64_t bytes);

 private:
  SharedCache(Device device, int stream, std::int64_t limit);
  ~SharedCache();  // of a retired pool: the others are never destroyed
  void* map(std::int64_t bytes);
  void unmap(void* p, std::int64_t bytes);
  void hold(Storage* s);
  void keep(Storage* s);
  void take_back_held(bool wait);
  void link(Storage* s);
  void unlink(Storage* s);
  void evict(Storage* s);
  Storage* new_header();
  Slab* slab_for(int size_class);

  const Device device_;
  const std::int16_t stream_;
  static const int at_fork_;  // the status of pthread_atfork()

  std::mutex mutex_;
  Storage* heads_[kClasses] = {};
  Storage *front_ = nullptr, *tail_ = nullptr;
  std::vector<Slab*> slabs_[kClasses];
  std::vector<Storage*> spare_headers_;
  struct Held {
    Storage* block;
    std::vector<cuda::Event> until;
  };
  std::vector<Held> held_;  // freed, but another stream may still use them
  std::int64_t cached_ = 0, limit_;
  std::int64_t blocks_ = 0;     // made and not evicted
  std::vector<Storage*> kept_;  // a pool's: freed while it was filled, but not its own
  bool retired_ = false;
};

}  // namespace weft::detail
