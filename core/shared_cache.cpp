#include "weft/core/shared_cache.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "weft/core/cgroup.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"

namespace weft {

// A slab is one mapping cut into equal small blocks. It returns to the system when all its blocks
// have been evicted from the cache.
struct Slab {
  char* base;
  std::int64_t bytes;
  std::int16_t size_class;
  std::int32_t blocks, out;     // out: blocks in use or cached, that is, not returned by eviction
  std::vector<char*> returned;  // blocks not in use or cached; evicted ones are reused first
};

namespace detail {
namespace {

constexpr std::int64_t kHugePage = 2 << 20;
constexpr int kLargerClasses = 8;  // one doubling of the size
// Alignment of every GPU block. The algorithm of a matrix product, and with it its last bits,
// depends on the alignment of operands, which must not depend on earlier allocations.
constexpr std::int64_t kGpuAlignment = 256;

// Margin on each side of a separate mapping, for AddressSanitizer.
constexpr std::int64_t kMargin = kRedZone > 0 ? 4096 : 0;

// Blocks of 2 MiB and more start on a huge-page boundary, so that huge pages can back them.
void* map_memory(std::int64_t bytes) {
  const bool huge = bytes >= kHugePage;
  const std::int64_t room = huge ? bytes + kHugePage + 2 * kMargin : bytes;
  void* p = mmap(nullptr, static_cast<std::size_t>(room), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  cache_counters_of(kCpu).system_allocs.add(1);
  if (!huge) {
    forbid(p, bytes);
    return p;
  }
  char* const base = static_cast<char*>(p);
  char* const aligned =
      reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(base) + kMargin + kHugePage - 1) &
                              ~std::uintptr_t{kHugePage - 1});
  char* const begin = aligned - kMargin;
  if (begin > base) munmap(base, static_cast<std::size_t>(begin - base));
  char* const end = aligned + ((bytes + 4095) & ~std::int64_t{4095}) + kMargin;
  if (base + room > end) munmap(end, static_cast<std::size_t>(base + room - end));
  madvise(aligned, static_cast<std::size_t>(end - kMargin - aligned), MADV_HUGEPAGE);
  forbid(begin, end - begin);
  return aligned;
}

void unmap_memory(void* p, std::int64_t bytes) {
  const std::int64_t margin = bytes >= kHugePage ? kMargin : 0;
  char* const begin = static_cast<char*>(p) - margin;
  const std::int64_t room = ((bytes + 4095) & ~std::int64_t{4095}) + 2 * margin;
  permit(begin, room);  // the addresses may be mapped again
  munmap(begin, static_cast<std::size_t>(room));
}

constinit std::atomic<SharedCache*> stream_caches[cuda::kMaxStreams];
constinit thread_local SharedCache* thread_pool = nullptr;

std::int64_t half_of_memory() {
  const std::int64_t all =
      static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return std::min(all, cgroup_limits().memory.value_or(all)) / 2;
}

}  // namespace

// A child of fork() must find the cache created and its lock free, whatever other threads did.
const int SharedCache::at_fork_ = pthread_atfork(
    [] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); }, [] { get().mutex_.unlock(); });

// Never destroyed: tensors with static storage duration may outlive any static cache.
SharedCache& SharedCache::get() {
  static SharedCache* cache = new SharedCache(kCpu, -1, half_of_memory());
  return *cache;
}

SharedCache& SharedCache::of(const cuda::Stream& stream) {
  std::atomic<SharedCache*>& slot = stream_caches[stream.id()];
  if (SharedCache* cache = slot.load(std::memory_order_acquire)) return *cache;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!slot.load()) slot = new SharedCache(stream.device(), stream.id(), INT64_MAX);
  return *slot.load();
}

SharedCache& SharedCache::source(Device device) {
  if (device.is_cpu()) return get();
  if (thread_pool && thread_pool->device_ == device) return *thread_pool;
  return of(cuda::Stream::current(device));
}

SharedCache* SharedCache::begin_pool(const cuda::Stream& stream) {
  thread_pool = new SharedCache(stream.device(), stream.id(), INT64_MAX);
  return thread_pool;
}
void SharedCache::end_pool() { thread_pool = nullptr; }

SharedCache::~SharedCache() {
  for (Storage* header : spare_headers_) delete header;
}

void SharedCache::retire() {
  std::vector<Storage*> kept;
  bool empty;
  {
    const std::lock_guard lock(mutex_);
    retired_ = true;
    limit_ = -1;
    reclaim_deferred(true);
    while (tail_) evict(tail_);
    kept.swap(kept_);
    empty = blocks_ == 0;
  }
  for (Storage* s : kept) s->cache->put(s);
  if (empty) delete this;
}

void SharedCache::evict_device(Device device) {
  for (std::atomic<SharedCache*>& slot : stream_caches)
    if (SharedCache* cache = slot.load(); cache && cache->device_ == device) cache->evict_all();
}

SharedCache::SharedCache(Device device, int stream, std::int64_t limit)
    : device_(device), stream_(static_cast<std::int16_t>(stream)), limit_(limit) {}

void* SharedCache::map(std::int64_t bytes) {
  if (device_.is_cpu()) return map_memory(bytes);
  void* p = nullptr;
  if constexpr (kWithCuda) {
    cuda::detail::use_device(device_.index);
    p = cuda::rt::allocate(bytes);
  }
  if (p) cache_counters_of(device_).system_allocs.add(1);
  return p;
}

void SharedCache::unmap(void* p, std::int64_t bytes) {
  if (device_.is_cpu()) return unmap_memory(p, bytes);
  if constexpr (kWithCuda) {
    cuda::detail::use_device(device_.index);
    cuda::rt::free(p);
  }
}

Storage* SharedCache::take(int size_class, bool exact) {
  const std::lock_guard lock(mutex_);
  if (!deferred_.empty()) reclaim_deferred(false);
  // Gradients need other sizes than the activations just freed. A smaller request reuses a separate
  // mapping of at most twice its size rather than growing the process. Small blocks serve only
  // their own class.
  const int last =
      exact || class_bytes(size_class) < kHugePage ? size_class : size_class + kLargerClasses;
  for (int c = size_class; c <= last && c < kClasses; ++c)
    if (Storage* s = heads_[c]) {
      unlink(s);
      return s;
    }
  return nullptr;
}

void SharedCache::put(Storage* s) {
  // A capture cannot record events on any device, so blocks used by other streams are kept like the
  // rest.
  if (thread_pool && thread_pool != this && device_.is_cuda()) return thread_pool->keep(s);
  bool last;
  {
    const std::lock_guard lock(mutex_);
    if (!s->used_on.empty()) {
      try {
        defer(s);
      } catch (const Error&) {  // the device has failed; destructors that free this report nothing
        return;
      }
      if (!retired_) return;
      reclaim_deferred(true);
    } else {
      link(s);
    }
    while (cached_ > limit_ && tail_) evict(tail_);
    last = retired_ && blocks_ == 0;
  }
  if (last) delete this;
}

void SharedCache::keep(Storage* s) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(s);
}

void SharedCache::defer(Storage* s) {
  Deferred deferred{s, {}};
  s->used_on.for_each([&](int id) {
    deferred.until.emplace_back();
    deferred.until.back().record(cuda::Stream::of_id(id));
  });
  s->used_on.clear();
  deferred_.push_back(std::move(deferred));
}

void SharedCache::reclaim_deferred(bool wait) {
  for (std::size_t i = deferred_.size(); i-- > 0;) {
    const auto done = [wait](const cuda::Event& e) {
      if (wait) e.synchronize_unchecked();
      return wait || e.done();
    };
    if (!std::all_of(deferred_[i].until.begin(), deferred_[i].until.end(), done)) continue;
    link(deferred_[i].block);
    deferred_.erase(deferred_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

Storage* SharedCache::make(int size_class) {
  const std::lock_guard lock(mutex_);
  Slab* slab = nullptr;
  char* data = nullptr;
  const std::int64_t bytes = class_bytes(size_class);
  if (bytes >= kHugePage) {
    data = static_cast<char*>(map(bytes));
  } else if ((slab = slab_for(size_class))) {
    data = slab->returned.back();
    slab->returned.pop_back();
    ++slab->out;
  }
  if (!data) return nullptr;
  cache_counters_of(device_).made.add(bytes);
  ++blocks_;
  Storage* s = new_header();
  s->data = data;
  s->capacity = bytes;
  s->size_class = static_cast<std::int16_t>(size_class);
  s->slab = slab;
  s->device = device_;
  s->stream = stream_;
  s->cache = this;
  return s;
}

Storage* SharedCache::new_header() {
  if (spare_headers_.empty()) return new Storage;
  Storage* s = spare_headers_.back();
  spare_headers_.pop_back();
  return s;
}

Storage* SharedCache::header() {
  const std::lock_guard lock(mutex_);
  return new_header();
}

void SharedCache::drop_header(Storage* s) {
  const std::lock_guard lock(mutex_);
  spare_headers_.push_back(s);
}

void SharedCache::evict_all() {
  const std::lock_guard lock(mutex_);
  if (!thread_pool) reclaim_deferred(true);  // a capture must not wait
  while (tail_) evict(tail_);
}

void SharedCache::set_limit(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  while (cached_ > limit_ && tail_) evict(tail_);
}

void SharedCache::mark_usable(const Storage* s, std::int64_t bytes) {
  if constexpr (kWithCuda)
    if (device_.is_cuda())
      cuda::rt::mark_usable(s->data, bytes, class_bytes(s->size_class),
                            cuda::Stream::of_id(stream_).handle());
}

void SharedCache::link(Storage* s) {
  mark_usable(s, 0);
  Storage*& head = heads_[s->size_class];
  s->class_prev = nullptr;
  s->class_next = head;
  if (head) head->class_prev = s;
  head = s;
  s->lru_prev = nullptr;
  s->lru_next = front_;
  if (front_) front_->lru_prev = s;
  front_ = s;
  if (!tail_) tail_ = s;
  cached_ += s->capacity;
}

void SharedCache::unlink(Storage* s) {
  (s->class_prev ? s->class_prev->class_next : heads_[s->size_class]) = s->class_next;
  if (s->class_next) s->class_next->class_prev = s->class_prev;
  (s->lru_prev ? s->lru_prev->lru_next : front_) = s->lru_next;
  (s->lru_next ? s->lru_next->lru_prev : tail_) = s->lru_prev;
  cached_ -= s->capacity;
}

void SharedCache::evict(Storage* s) {
  unlink(s);
  cache_counters_of(device_).evictions.add(1);
  cache_counters_of(device_).made.add(-s->capacity);
  --blocks_;
  if (Slab* slab = s->slab) {
    slab->returned.push_back(static_cast<char*>(s->data));
    if (--slab->out == 0) {
      std::vector<Slab*>& all = slabs_[slab->size_class];
      all.erase(std::find(all.begin(), all.end(), slab));
      unmap(slab->base, slab->bytes);
      delete slab;
    }
  } else {
    unmap(s->data, s->capacity);
  }
  s->data = nullptr;
  s->slab = nullptr;
  spare_headers_.push_back(s);
}

Slab* SharedCache::slab_for(int size_class) {
  for (Slab* slab : slabs_[size_class])
    if (!slab->returned.empty()) return slab;
  std::int64_t block = class_bytes(size_class);
  if (device_.is_cuda()) block = (block + kGpuAlignment - 1) / kGpuAlignment * kGpuAlignment;
  const std::int64_t room = std::clamp<std::int64_t>(16 * block, 64 << 10, kHugePage);
  const std::int64_t blocks = room / block;
  const std::int64_t bytes = (room + (blocks + 1) * kRedZone + 4095) & ~std::int64_t{4095};
  block += kRedZone;
  char* base = static_cast<char*>(map(bytes));
  if (!base) return nullptr;
  Slab* slab = new Slab{base, bytes, static_cast<std::int16_t>(size_class), 0, 0, {}};
  slab->blocks = static_cast<std::int32_t>(blocks);
  for (std::int32_t i = slab->blocks; i-- > 0;)
    slab->returned.push_back(base + kRedZone + i * block);
  slabs_[size_class].push_back(slab);
  return slab;
}

}  // namespace detail
}  // namespace weft
