#include "weft/core/allocator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/storage.h"

namespace weft {

// A slab is one mapping cut into equal small blocks. It goes back to the system when every block
// has been evicted from the cache.
struct Slab {
  char* base;
  std::int64_t bytes;
  std::int16_t size_class;
  std::int32_t blocks, out;     // out: blocks handed to the cache and not returned by eviction
  std::vector<char*> returned;  // evicted blocks, the first to be handed out again
};

namespace {

constexpr std::int64_t kHugePage = 2 << 20;
constexpr std::int64_t kFrontBlock = 64 << 10;  // larger blocks go to the shared cache directly
constexpr std::int64_t kFrontBytes = 16 << 20;  // what one thread may keep for itself
constexpr int kFrontHeaders = 1 << 12;          // likewise, of headers without memory
constexpr std::int64_t kGuard = 64;             // bytes on each side of a block in debug mode
constexpr unsigned char kGuardByte = 0xa5, kPoisonByte = 0xff;  // 0xff.. is NaN in every format

// 64-byte steps up to 1 KiB, then 8 steps a doubling: at most 12.5 % unused.
constexpr int kLinearClasses = 16;
constexpr int kClasses = kLinearClasses + 8 * 38;

constexpr int class_of(std::int64_t bytes) {
  if (bytes <= 1024) return static_cast<int>((bytes + 63) / 64) - 1;
  const int k = std::bit_width(static_cast<std::uint64_t>(bytes - 1)) - 1;
  const std::int64_t step = std::int64_t{1} << (k - 3);
  const auto part = static_cast<int>((bytes - (std::int64_t{1} << k) + step - 1) / step);
  return kLinearClasses + (k - 10) * 8 + part - 1;
}

constexpr std::int64_t class_bytes(int c) {
  if (c < kLinearClasses) return 64 * (c + 1);
  const int k = 10 + (c - kLinearClasses) / 8, part = (c - kLinearClasses) % 8 + 1;
  return (std::int64_t{1} << k) + part * (std::int64_t{1} << (k - 3));
}

constexpr int kFrontClasses = class_of(kFrontBlock) + 1;
static_assert(class_bytes(class_of(1)) == 64 && class_bytes(class_of(1024)) == 1024);
static_assert(class_bytes(class_of(1025)) == 1152 && class_bytes(class_of(3 << 20)) == 3 << 20);

struct Counters {
  std::atomic<std::int64_t> hits{0}, misses{0}, evictions{0}, system_allocs{0}, live{0}, peak{0},
      cached{0};
  std::atomic<std::int64_t> by_category[kCategories] = {};
};
Counters counters[Device::kKinds];
Counters& counters_of(Device d) { return counters[static_cast<int>(d.kind)]; }

std::atomic<bool> debug_mode{false};
std::atomic<std::int64_t> broken_guards{0};
constinit thread_local Category current_category = Category::other;

void count_alloc(const Storage* s) {
  Counters& c = counters_of(s->device);
  c.by_category[static_cast<int>(s->category)].fetch_add(s->capacity, std::memory_order_relaxed);
  const std::int64_t live = c.live.fetch_add(s->capacity, std::memory_order_relaxed) + s->capacity;
  std::int64_t peak = c.peak.load(std::memory_order_relaxed);
  while (live > peak && !c.peak.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
}

void count_free(const Storage* s) {
  Counters& c = counters_of(s->device);
  c.by_category[static_cast<int>(s->category)].fetch_sub(s->capacity, std::memory_order_relaxed);
  c.live.fetch_sub(s->capacity, std::memory_order_relaxed);
}

// Blocks of 2 MiB and more start on a huge page and may be backed by them.
void* map_memory(std::int64_t bytes) {
  const bool huge = bytes >= kHugePage;
  const std::int64_t room = huge ? bytes + kHugePage : bytes;
  void* p = mmap(nullptr, static_cast<std::size_t>(room), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  counters[0].system_allocs.fetch_add(1, std::memory_order_relaxed);
  if (!huge) return p;
  char* const base = static_cast<char*>(p);
  char* const aligned = reinterpret_cast<char*>(
      (reinterpret_cast<std::uintptr_t>(base) + kHugePage - 1) & ~std::uintptr_t{kHugePage - 1});
  if (aligned > base) munmap(base, static_cast<std::size_t>(aligned - base));
  char* const end = aligned + ((bytes + 4095) & ~std::int64_t{4095});
  if (base + room > end) munmap(end, static_cast<std::size_t>(base + room - end));
  madvise(aligned, static_cast<std::size_t>(end - aligned), MADV_HUGEPAGE);
  return aligned;
}

void unmap_memory(void* p, std::int64_t bytes) {
  munmap(p, static_cast<std::size_t>((bytes + 4095) & ~std::int64_t{4095}));
}

std::int64_t half_of_memory() {
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE) / 2;
}

// The process-wide cache: per size class a list of free blocks, newest first, and one list over all
// of them in order of last use, whose tail is given back first.
class SharedCache {
 public:
  Storage* take(int size_class) {
    const std::lock_guard lock(mutex_);
    Storage* s = heads_[size_class];
    if (s) unlink(s);
    return s;
  }

  void put(Storage* s) {
    const std::lock_guard lock(mutex_);
    link(s);
    while (cached_ > limit_ && tail_) evict(tail_);
  }

  // A fresh block from a slab or a mapping of its own; null when the system refuses.
  Storage* make(int size_class) {
    const std::lock_guard lock(mutex_);
    Slab* slab = nullptr;
    char* data = nullptr;
    const std::int64_t bytes = class_bytes(size_class);
    if (bytes >= kHugePage) {
      data = static_cast<char*>(map_memory(bytes));
    } else if ((slab = slab_for(size_class))) {
      if (!slab->returned.empty()) {
        data = slab->returned.back();
        slab->returned.pop_back();
      }
      ++slab->out;
    }
    if (!data) return nullptr;
    Storage* s = new_header();
    s->data = data;
    s->capacity = bytes;
    s->size_class = static_cast<std::int16_t>(size_class);
    s->slab = slab;
    s->device = kCpu;
    return s;
  }

  Storage* new_header() {
    if (spare_headers_.empty()) return new Storage;
    Storage* s = spare_headers_.back();
    spare_headers_.pop_back();
    return s;
  }

  Storage* header() {
    const std::lock_guard lock(mutex_);
    return new_header();
  }

  void drop_header(Storage* s) {
    const std::lock_guard lock(mutex_);
    spare_headers_.push_back(s);
  }

  void evict_all() {
    const std::lock_guard lock(mutex_);
    while (tail_) evict(tail_);
  }

  void set_limit(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    while (cached_ > limit_ && tail_) evict(tail_);
  }

 private:
  void link(Storage* s) {
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

  void unlink(Storage* s) {
    (s->class_prev ? s->class_prev->class_next : heads_[s->size_class]) = s->class_next;
    if (s->class_next) s->class_next->class_prev = s->class_prev;
    (s->lru_prev ? s->lru_prev->lru_next : front_) = s->lru_next;
    (s->lru_next ? s->lru_next->lru_prev : tail_) = s->lru_prev;
    cached_ -= s->capacity;
  }

  void evict(Storage* s) {
    unlink(s);
    counters[0].evictions.fetch_add(1, std::memory_order_relaxed);
    counters[0].cached.fetch_sub(s->capacity, std::memory_order_relaxed);
    if (Slab* slab = s->slab) {
      slab->returned.push_back(static_cast<char*>(s->data));
      if (--slab->out == 0) {
        std::vector<Slab*>& all = slabs_[slab->size_class];
        all.erase(std::find(all.begin(), all.end(), slab));
        unmap_memory(slab->base, slab->bytes);
        delete slab;
      }
    } else {
      unmap_memory(s->data, s->capacity);
    }
    s->data = nullptr;
    s->slab = nullptr;
    spare_headers_.push_back(s);
  }

  Slab* slab_for(int size_class) {
    for (Slab* slab : slabs_[size_class])
      if (!slab->returned.empty()) return slab;
    const std::int64_t block = class_bytes(size_class);
    const std::int64_t bytes =
        (std::clamp<std::int64_t>(16 * block, 64 << 10, kHugePage) + 4095) & ~std::int64_t{4095};
    char* base = static_cast<char*>(map_memory(bytes));
    if (!base) return nullptr;
    Slab* slab = new Slab{base, bytes, static_cast<std::int16_t>(size_class), 0, 0, {}};
    slab->blocks = static_cast<std::int32_t>(bytes / block);
    for (std::int32_t i = slab->blocks; i-- > 0;) slab->returned.push_back(base + i * block);
    slabs_[size_class].push_back(slab);
    return slab;
  }

  std::mutex mutex_;
  Storage* heads_[kClasses] = {};
  Storage *front_ = nullptr, *tail_ = nullptr;
  std::vector<Slab*> slabs_[kClasses];
  std::vector<Storage*> spare_headers_;
  std::int64_t cached_ = 0, limit_ = half_of_memory();
};

// Never destroyed: tensors with static storage duration may outlive any static cache.
SharedCache& shared_cache() {
  static SharedCache* cache = new SharedCache;
  return *cache;
}

// What this thread freed last: taken again without a lock. When the thread ends, the blocks move to
// the shared cache.
struct FrontCache {
  Storage* heads[kFrontClasses] = {};
  Storage* headers = nullptr;  // meta storages and emptied ones: headers without memory
  int header_count = 0;
  std::int64_t bytes = 0;
  bool alive = true;
  ~FrontCache() {
    alive = false;
    flush();
  }
  void flush() {
    for (Storage*& head : heads)
      while (Storage* s = head) {
        head = s->class_next;
        shared_cache().put(s);
      }
    bytes = 0;
    header_count = 0;
    while (Storage* s = headers) {
      headers = s->class_next;
      shared_cache().drop_header(s);
    }
  }
};
thread_local FrontCache front;

Storage* bare_header() {
  Storage* s = front.headers;
  if (!s) return shared_cache().header();
  front.headers = s->class_next;
  --front.header_count;
  return s;
}

void drop_bare_header(Storage* s) {
  s->data = nullptr;
  s->capacity = 0;
  if (!front.alive || front.header_count == kFrontHeaders) return shared_cache().drop_header(s);
  s->class_next = front.headers;
  front.headers = s;
  ++front.header_count;
}

Storage* take_cpu_block(int size_class) {
  Counters& c = counters[0];
  Storage* s = nullptr;
  if (size_class < kFrontClasses && (s = front.heads[size_class])) {
    front.heads[size_class] = s->class_next;
    front.bytes -= s->capacity;
  } else {
    s = shared_cache().take(size_class);
  }
  if (s) {
    c.hits.fetch_add(1, std::memory_order_relaxed);
    c.cached.fetch_sub(s->capacity, std::memory_order_relaxed);
    return s;
  }
  c.misses.fetch_add(1, std::memory_order_relaxed);
  s = shared_cache().make(size_class);
  if (!s) {
    release_cached_memory();
    s = shared_cache().make(size_class);
  }
  return s;
}

// Debug mode: [guard][payload][guard], the payload NaN when fresh.
void arm_guards(Storage* s, bool fill_nan) {
  char* base = static_cast<char*>(s->data);
  std::memset(base, kGuardByte, kGuard);
  std::memset(base + kGuard + s->bytes, kGuardByte,
              static_cast<std::size_t>(s->capacity - kGuard - s->bytes));
  if (fill_nan) std::memset(base + kGuard, kPoisonByte, static_cast<std::size_t>(s->bytes));
  s->data = base + kGuard;
  s->guarded = true;
}

void disarm_guards(Storage* s) {
  char* base = static_cast<char*>(s->data) - kGuard;
  const auto intact = [](const char* p, std::int64_t n) {
    return std::all_of(p, p + n,
                       [](char c) { return static_cast<unsigned char>(c) == kGuardByte; });
  };
  if (!intact(base, kGuard) || !intact(base + kGuard + s->bytes, s->capacity - kGuard - s->bytes)) {
    broken_guards.fetch_add(1);
    log_line(message("allocator: a guard zone of a block of {} bytes was overwritten", s->bytes));
  }
  std::memset(base + kGuard, kPoisonByte, static_cast<std::size_t>(s->bytes));
  s->data = base;
  s->guarded = false;
}

void free_cpu_block(Storage* s) {
  if (s->guarded) disarm_guards(s);
  counters[0].cached.fetch_add(s->capacity, std::memory_order_relaxed);
  if (s->size_class < kFrontClasses && front.alive && front.bytes + s->capacity <= kFrontBytes) {
    s->class_next = front.heads[s->size_class];
    front.heads[s->size_class] = s;
    front.bytes += s->capacity;
  } else {
    shared_cache().put(s);
  }
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
  check(device.index >= 0 && device.index < 16, "device: index must be in [0, 16), got {}",
        device.index);
  return &table[static_cast<int>(device.kind) * 16 + device.index];
}

}  // namespace

Storage* allocate_storage(std::int64_t bytes, Device device, bool fill_nan) {
  check(!device.is_cuda(), "allocate: this build has no CUDA support, got device {}", device);
  if (bytes == 0) {
    Storage* s = shared_empty_storage(device);
    s->retain();
    return s;
  }
  const bool guarded = device.is_cpu() && debug_mode.load(std::memory_order_relaxed);
  const int size_class = class_of(bytes);
  check_system(bytes > 0 && size_class < kClasses, "allocate: too large, got {} bytes", bytes);
  Storage* s;
  if (device.is_meta()) {
    s = bare_header();
    s->capacity = class_bytes(size_class);
  } else {
    s = take_cpu_block(guarded ? class_of(bytes + 2 * kGuard) : size_class);
    if (!s)
      detail::raise(Fault::system,
                    "allocate: the system has no memory for {} bytes ({} live, all cached blocks "
                    "were given back); use a smaller batch, or recompute",
                    {bytes, counters[0].live.load()});
  }
  s->refs.store(1, std::memory_order_relaxed);
  s->version = 0;
  s->bytes = bytes;
  s->device = device;
  s->category = current_category;
  s->released = false;
  s->deleter = nullptr;
  if (guarded) arm_guards(s, fill_nan);
  count_alloc(s);
  return s;
}

Storage* wrap_storage(void* data, std::int64_t bytes, void (*deleter)(void*), void* context) {
  Storage* s = bare_header();
  s->refs.store(1, std::memory_order_relaxed);
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

void Storage::free_storage(Storage* s) {
  if (s->shared_empty) {
    s->refs.store(1, std::memory_order_relaxed);
    return;
  }
  if (s->deleter) {
    s->deleter(s->deleter_context);
    s->deleter = nullptr;
    return drop_bare_header(s);
  }
  if (s->released) return drop_bare_header(s);
  count_free(s);
  if (s->device.is_meta()) return drop_bare_header(s);
  free_cpu_block(s);
}

void empty_storage(Storage* s) {
  if (s->shared_empty || s->released) return;
  if (s->deleter) {
    s->deleter(s->deleter_context);
    s->deleter = nullptr;
  } else {
    count_free(s);
    if (s->device.is_cpu()) {
      // The block moves to a header of its own; this one stays with the tensors.
      Storage* block = bare_header();
      block->data = s->data;
      block->bytes = s->bytes;
      block->capacity = s->capacity;
      block->size_class = s->size_class;
      block->slab = s->slab;
      block->guarded = s->guarded;
      block->device = s->device;
      free_cpu_block(block);
    }
  }
  s->data = nullptr;
  s->slab = nullptr;
  s->guarded = false;
  s->capacity = 0;
  s->released = true;
}

const char* name(Category c) {
  constexpr const char* kNames[kCategories] = {"parameter", "gradient",      "activation",
                                               "optimizer", "communication", "other"};
  return kNames[static_cast<int>(c)];
}

CategoryScope::CategoryScope(Category category) : previous_(current_category) {
  current_category = category;
}
CategoryScope::~CategoryScope() { current_category = previous_; }

MemoryStats memory_stats(Device device) {
  const Counters& c = counters_of(device);
  MemoryStats s;
  s.hits = c.hits;
  s.misses = c.misses;
  s.evictions = c.evictions;
  s.system_allocs = c.system_allocs;
  s.live_bytes = c.live;
  s.peak_bytes = c.peak;
  s.cached_bytes = c.cached;
  for (int i = 0; i < kCategories; ++i) s.live_by_category[i] = c.by_category[i];
  return s;
}

void reset_peak(Device device) {
  Counters& c = counters_of(device);
  c.peak = c.live.load();
}

void set_max_cached_bytes(std::int64_t bytes) {
  check(bytes >= 0, "set_max_cached_bytes: must be at least 0, got {}", bytes);
  shared_cache().set_limit(bytes);
}

void release_cached_memory() {
  front.flush();
  shared_cache().evict_all();
}

std::int64_t size_class_bytes(std::int64_t bytes) {
  return bytes == 0 ? 0 : class_bytes(class_of(bytes));
}

void set_debug_allocator(bool on) { debug_mode = on; }
bool debug_allocator() { return debug_mode; }

void check_guard_zones() {
  const std::int64_t n = broken_guards.load();
  check(n == 0, "allocator: guard zones were overwritten, got {} of them", n);
}

}  // namespace weft
