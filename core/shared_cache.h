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

/// Size of the red zone between neighbouring blocks, on the host and on an emulated GPU.
/// AddressSanitizer reports accesses to red zones, to the slack after the requested bytes and to
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

/// The process-wide block cache of one memory: the host's, or that of one GPU stream (a block freed
/// on a stream can be reused on it at once, since its kernels run in order). Each size class has a
/// list of free blocks, newest first; one more list orders all of them by last use, and eviction
/// starts at its tail.
class SharedCache {
 public:
  /// The cache of the host.
  static SharedCache& get();
  /// The cache of a stream.
  static SharedCache& of(const cuda::Stream& stream);
  /// The cache from which new blocks of the device come on this thread.
  static SharedCache& source(Device device);
  /// Until end_pool(), this thread's allocations on the stream's device come from a private cache.
  /// GPU blocks of any cache that the thread frees meanwhile are kept there too.
  static SharedCache* begin_pool(const cuda::Stream& stream);
  static void end_pool();
  /// Retires such a pool when nothing uses its memory any more: frees its blocks, and live blocks
  /// when they are released. The last block destroys the pool.
  void retire();
  /// Frees the cached blocks of all streams of a device, after waiting for their last use. Inside a
  /// capture, which cannot wait, skips blocks that another stream may still use.
  static void evict_device(Device device);

  /// A free block of the class, or, unless `exact`, a larger one where blocks are separate
  /// mappings; or null.
  Storage* take(int size_class, bool exact = false);
  void put(Storage* s);
  /// Declares that kernels will use this many bytes of a block of this cache.
  void mark_usable(const Storage* s, std::int64_t bytes);
  /// A new block from a slab or a separate mapping; null when the system refuses.
  Storage* make(int size_class);
  /// A header without memory.
  Storage* header();
  void drop_header(Storage* s);
  void evict_all();
  /// Evicts blocks above this many bytes, now and from now on.
  void set_limit(std::int64_t bytes);

 private:
  SharedCache(Device device, int stream, std::int64_t limit);
  ~SharedCache();  // of a retired pool: other caches are never destroyed
  void* map(std::int64_t bytes);
  void unmap(void* p, std::int64_t bytes);
  void defer(Storage* s);
  void keep(Storage* s);
  void reclaim_deferred(bool wait);
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
  struct Deferred {
    Storage* block;
    std::vector<cuda::Event> until;
  };
  std::vector<Deferred> deferred_;  // freed, but another stream may still use them
  std::int64_t cached_ = 0, limit_;
  std::int64_t blocks_ = 0;     // created and not evicted
  std::vector<Storage*> kept_;  // in a pool: blocks of other caches freed during the capture
  bool retired_ = false;
};

}  // namespace weft::detail
