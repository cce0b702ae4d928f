#pragma once
#include <mutex>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/core/memory_counters.h"
#include "weft/core/size_class.h"
#include "weft/core/storage.h"

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_poison_memory_region(const volatile void* p, std::size_t bytes);
extern "C" void __asan_unpoison_memory_region(const volatile void* p, std::size_t bytes);
#endif

namespace weft::detail {

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
