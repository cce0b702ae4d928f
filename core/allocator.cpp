#include "weft/core/allocator.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "weft/core/block_guards.h"
#include "weft/core/error.h"
#include "weft/core/memory_trace.h"
#include "weft/core/restorer.h"
#include "weft/core/shared_cache.h"
#include "weft/core/size_class.h"
#include "weft/core/storage.h"

namespace weft {
namespace {

using detail::arm_guards;
using detail::block_watchers;
using detail::cache_counters_of;
using detail::class_bytes;
using detail::class_of;
using detail::Counter;
using detail::counters_of;
using detail::current_category;
using detail::disarm_guards;
using detail::forbid;
using detail::kClasses;
using detail::kGuard;
using detail::MemoryCounters;
using detail::permit;
using detail::SharedCache;

constexpr std::int64_t kFrontBlock = 64 << 10;  // larger blocks go to the shared cache directly
constexpr std::int64_t kFrontBytes = 16 << 20;  // bytes that one thread may cache
constexpr int kFrontHeaders = 1 << 12;          // headers without memory that one thread may cache

constexpr int kFrontClasses = class_of(kFrontBlock) + 1;

inline void count_alloc(const Storage* s, MemoryCounters& c, bool alone) {
  c.by_category[static_cast<int>(s->category)].add(s->capacity, alone);
  c.live.add(s->capacity, alone);
  const std::int64_t live = c.live.get();
  std::int64_t peak = c.peak.load(std::memory_order_relaxed);
  while (live > peak && !c.peak.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
}

void count_free(const Storage* s) {
  MemoryCounters& c = counters_of(s->device);
  const bool alone = Counter::counts_alone();
  c.by_category[static_cast<int>(s->category)].add(-s->capacity, alone);
  c.live.add(-s->capacity, alone);
}

// Counts a block that is not live under the size class of this many bytes.
void count_as(Storage* s, std::int64_t bytes) {
  if (s->capacity != bytes) cache_counters_of(s->device).made.add(bytes - s->capacity);
  s->capacity = bytes;
}

// Blocks that this thread freed last. Taking one needs no lock.
struct FrontCache {
  enum class State : std::uint8_t { unused, open, closed };
  Storage* heads[kFrontClasses] = {};
  Storage* headers = nullptr;  // for meta storages and emptied ones: headers without memory
  std::int64_t bytes = 0;
  int header_count = 0;
  State state = State::unused;
  void flush() {
    for (Storage*& head : heads)
      while (Storage* s = head) {
        head = s->class_next;
        s->cache->put(s);
      }
    bytes = 0;
    header_count = 0;
    while (Storage* s = headers) {
      headers = s->class_next;
      SharedCache::get().drop_header(s);
    }
  }
};
// Has no destructor, since each access would ask whether it was constructed.
constinit thread_local FrontCache front;

// Returns the blocks when the thread ends. Destructors that run later free to the shared cache.
struct FrontEnd {
  FrontEnd() { front.state = FrontCache::State::open; }
  ~FrontEnd() {
    front.state = FrontCache::State::closed;
    front.flush();
  }
};
[[gnu::noinline, gnu::cold]] bool open_front() {
  if (front.state == FrontCache::State::unused) static thread_local const FrontEnd end;
  return front.state == FrontCache::State::open;
}
// Whether the thread may cache what it frees.
bool keeps_freed() { return front.state == FrontCache::State::open || open_front(); }

Storage* bare_header() {
  Storage* s = front.headers;
  if (!s) return SharedCache::get().header();
  front.headers = s->class_next;
  --front.header_count;
  return s;
}

void drop_bare_header(Storage* s) {
  s->data = nullptr;
  s->capacity = 0;
  s->used_on.clear();
  if (!keeps_freed() || front.header_count == kFrontHeaders)
    return SharedCache::get().drop_header(s);
  s->class_next = front.headers;
  front.headers = s;
  ++front.header_count;
}

Storage* take_front_block(int size_class) {
  Storage* s = front.heads[size_class];
  if (s) {
    front.heads[size_class] = s->class_next;
    front.bytes -= s->capacity;
  }
  return s;
}

// Null when there is no memory, even after every cached block was returned to the system.
Storage* make_block(SharedCache& cache, int size_class, Device device) {
  if (Storage* const s = cache.make(size_class)) return s;
  release_cached_memory(device);
  return cache.make(size_class);
}

// Returns a block of host memory or of the current stream's memory, or null.
Storage* take_block(int size_class, Device device) {
  const bool host = device.is_cpu();
  SharedCache& cache = SharedCache::source(device);
  MemoryCounters& c = counters_of(device);
  Storage* s = host && size_class < kFrontClasses ? take_front_block(size_class) : nullptr;
  if (!s) s = cache.take(size_class);
  if (s) {
    c.hits.add(1);
    // Count the class of the request, as the meta device does; the block may be larger.
    if (s->size_class != size_class) count_as(s, class_bytes(size_class));
    return s;
  }
  c.misses.add(1);
  return make_block(cache, size_class, device);
}

[[noreturn]] void throw_out_of_memory(std::int64_t bytes, Device device) {
  const MemoryStats m = memory_stats(device);
  std::string held;
  for (int i = 0; i < kCategories; ++i)
    if (m.live_by_category[i] > 0)
      held += message("{}{} {}", held.empty() ? "" : ", ", m.live_by_category[i],
                      name(static_cast<Category>(i)));
  detail::raise(
      Fault::system,
      "allocate: {} has no memory for {} bytes: {} are live ({}) and {} cached, after the "
      "cache was emptied; use a smaller batch, or recompute",
      {device.is_cpu() ? std::string("the system") : to_string(device), bytes, m.live_bytes,
       held.empty() ? std::string("nothing") : held, m.cached_bytes});
}

void free_block(Storage* s) {
  if (s->guarded) disarm_guards(s);
  if (s->device.is_cpu()) forbid(s->data, class_bytes(s->size_class));
  if (s->size_class >= kFrontClasses) count_as(s, class_bytes(s->size_class));
  if (s->device.is_cpu() && s->size_class < kFrontClasses && keeps_freed() &&
      front.bytes + s->capacity <= kFrontBytes) {
    s->class_next = front.heads[s->size_class];
    front.heads[s->size_class] = s;
    front.bytes += s->capacity;
  } else {
    s->cache->put(s);
  }
}

// Gives `to` the block of `from`.
void hand_over(Storage* from, Storage* to) {
  to->data = from->data;
  to->capacity = from->capacity;
  to->size_class = from->size_class;
  to->slab = from->slab;
  to->guarded = from->guarded;
  to->stream = from->stream;
  to->used_on = from->used_on;
  to->cache = from->cache;
  from->used_on.clear();
}

void leave_empty(Storage* s) {
  s->data = nullptr;
  s->slab = nullptr;
  s->guarded = false;
  s->capacity = 0;
  s->released = true;
}

Storage* shared_empty_storage(Device device) {
  static Storage* const table = [] {
    auto* all = new Storage[Device::kKinds * 16];
    for (int i = 0; i < Device::kKinds * 16; ++i) {
      all[i].device = {static_cast<Device::Kind>(i / 16), static_cast<std::int16_t>(i % 16)};
      all[i].shared_empty = true;
    }
    return all;
  }();
  detail::check_index(device);
  return &table[static_cast<int>(device.kind) * 16 + device.index];
}

Storage* start(Storage* s, std::int64_t bytes, Device device) {
  s->refs.restart();
  s->version = 0;
  s->bytes = bytes;
  s->device = device;
  s->category = current_category;
  s->released = false;
  s->deleter = nullptr;
  return s;
}

// Handles what the fast path of allocate_storage() does not cover.
[[gnu::noinline]] Storage* allocate_slowly(std::int64_t bytes, Device device, bool fill_nan) {
  if (device.is_cuda()) cuda::check_device(device);
  if (bytes == 0) {
    Storage* s = shared_empty_storage(device);
    s->retain();
    return s;
  }
  const bool guarded = device.is_cpu() && debug_allocator();
  const int size_class = class_of(bytes);
  check_system(bytes > 0 && size_class < kClasses, "allocate: too large, got {} bytes", bytes);
  Storage* s;
  if (device.is_meta()) {
    s = bare_header();
    s->capacity = class_bytes(size_class);
  } else {
    s = take_block(guarded ? class_of(bytes + 2 * kGuard) : size_class, device);
    if (!s) throw_out_of_memory(bytes, device);
    if (device.is_cuda())
      s->cache->mark_usable(s, bytes);
    else
      permit(s->data, bytes);
  }
  start(s, bytes, device);
  if (guarded) arm_guards(s, fill_nan);
  count_alloc(s, counters_of(device), Counter::counts_alone());
  if (detail::tracing_blocks()) detail::trace_allocated(*s);
  return s;
}

}  // namespace

Storage* allocate_storage(std::int64_t bytes, Device device, bool fill_nan) {
  // Fast path: a small block that this thread freed before. No lock, no check that could fail, and
  // few registers.
  if (bytes > 0 && bytes <= kFrontBlock && device == kCpu &&
      block_watchers.load(std::memory_order_relaxed) == 0) [[likely]] {
    if (Storage* s = take_front_block(class_of(bytes))) [[likely]] {
      MemoryCounters& c = counters_of(kCpu);
      const bool alone = Counter::counts_alone();
      c.hits.add(1, alone);
      start(s, bytes, kCpu);
      permit(s->data, bytes);
      count_alloc(s, c, alone);
      return s;
    }
  }
  return allocate_slowly(bytes, device, fill_nan);
}

Storage* wrap_storage(void* data, std::int64_t bytes, void (*deleter)(void*), void* context) {
  Storage* s = bare_header();
  s->refs.restart();
  s->version = 0;
  s->data = data;
  s->bytes = bytes;
  s->capacity = 0;
  s->device = kCpu;
  s->category = Category::other;
  s->released = false;
  s->slab = nullptr;
  s->deleter = deleter ? deleter : [](void*) {};
  s->deleter_context = context;
  return s;
}

Storage* take_uncounted(std::int64_t bytes) {
  SharedCache& cache = SharedCache::get();
  const int size_class = class_of(std::max<std::int64_t>(bytes, 1));
  if (size_class >= kClasses) return nullptr;
  Storage* s = cache.take(size_class, true);  // its contents stay long
  if (!s) s = make_block(cache, size_class, kCpu);
  if (!s) return nullptr;
  cache_counters_of(kCpu).made.add(-s->capacity);
  permit(s->data, bytes);
  return s;
}

void give_back_uncounted(Storage* block) {
  cache_counters_of(kCpu).made.add(block->capacity);
  forbid(block->data, class_bytes(block->size_class));
  block->cache->put(block);
}

namespace {

inline void free_untraced(Storage* s) {
  if (s->deleter) {
    s->deleter(s->deleter_context);
    s->deleter = nullptr;
    return drop_bare_header(s);
  }
  if (s->released) {
    delete std::exchange(s->restorer, nullptr);
    return drop_bare_header(s);
  }
  count_free(s);
  if (s->device.is_meta()) return drop_bare_header(s);
  free_block(s);
}

// Apart, so that the usual path saves no registers for the call.
[[gnu::noinline, gnu::cold]] void free_traced(Storage* s) {
  detail::trace_freed(*s);
  free_untraced(s);
}

}  // namespace

void Storage::free_storage(Storage* s) {
  if (s->shared_empty) {
    s->refs.restart();
    return;
  }
  if (detail::tracing_blocks()) [[unlikely]]
    return free_traced(s);
  free_untraced(s);
}

void empty_storage(Storage* s) {
  if (s->shared_empty || s->released) return;
  if (detail::tracing_blocks()) detail::trace_freed(*s);
  if (s->deleter) {
    s->deleter(s->deleter_context);
    s->deleter = nullptr;
  } else {
    count_free(s);
    if (!s->device.is_meta()) {
      // The block moves to a new header; the tensors keep this one.
      Storage* block = bare_header();
      block->bytes = s->bytes;
      block->device = s->device;
      hand_over(s, block);
      free_block(block);
    }
  }
  leave_empty(s);
}

void move_block(Storage* from, Storage* to) {
  check(to->released && !from->released && !from->deleter && from->bytes == to->bytes &&
            from->device == to->device,
        "move_block: both must be storages of one size and device, the second one released, got {} "
        "bytes on {} and {} bytes on {}",
        from->bytes, from->device, to->bytes, to->device);
  if (detail::tracing_blocks()) detail::trace_freed(*from);
  hand_over(from, to);
  to->category = from->category;  // under which the block is counted
  if (detail::tracing_blocks()) detail::trace_allocated(*to);
  to->released = false;
  leave_empty(from);
}

void set_max_cached_bytes(std::int64_t bytes) {
  check(bytes >= 0, "set_max_cached_bytes: must be at least 0, got {}", bytes);
  SharedCache::get().set_limit(bytes);
}

void release_cached_memory(Device device) {
  if (device.is_cuda()) return SharedCache::evict_device(device);
  if (!device.is_cpu()) return;
  front.flush();
  SharedCache::get().evict_all();
}

std::int64_t size_class_bytes(std::int64_t bytes) {
  return bytes == 0 ? 0 : class_bytes(class_of(bytes));
}

}  // namespace weft
