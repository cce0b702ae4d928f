#pragma once
#include <cstdint>

#include "weft/core/allocator.h"
#include "weft/core/atomic_cells.h"
#include "weft/core/device.h"

namespace weft {

struct Slab;
namespace detail {
class SharedCache;
}

/// A reference-counted block of memory with the version that in-place writes bump. Cached blocks
/// keep their header, so reusing one is two list operations.
struct Storage {
  RefCount refs;
  std::uint32_t version = 0;
  void* data = nullptr;       ///< null on the meta device, when empty, and after release
  std::int64_t bytes = 0;     ///< asked for
  std::int64_t capacity = 0;  ///< size-class bytes of what was asked for; of the block when cached
  std::int16_t size_class = -1;  ///< of the block
  std::int16_t stream = -1;      ///< on a GPU: the stream whose kernels may use it
  std::uint64_t used_on = 0;     ///< on a GPU: bits of further streams, see record_stream()
  Device device;
  Category category = Category::other;
  bool released = false;             ///< emptied by release_storage(): reading throws
  bool guarded = false;              ///< allocated in debug mode
  bool shared_empty = false;         ///< the one empty storage of its device: never freed
  void (*deleter)(void*) = nullptr;  ///< for memory that Weft does not own
  void* deleter_context = nullptr;

  // Links of the allocator's lists; meaningful only while the block is cached.
  Storage *class_prev = nullptr, *class_next = nullptr;
  Storage *lru_prev = nullptr, *lru_next = nullptr;
  Slab* slab = nullptr;
  detail::SharedCache* cache = nullptr;  ///< where the block goes when it is freed

  void retain() { refs.retain(); }
  void release() {
    if (refs.release()) free_storage(this);
  }

  static void free_storage(Storage* s);
};

/// A block of at least `bytes`; `fill_nan` says that debug mode should fill it with NaN.
/// 0 bytes give the shared empty storage of the device.
/// Throws Error (Fault::system) when the system has no memory left, after all cached blocks were
/// given back.
Storage* allocate_storage(std::int64_t bytes, Device device, bool fill_nan);

/// Wraps memory that somebody else owns; `deleter(context)` runs when the last tensor lets go.
Storage* wrap_storage(void* data, std::int64_t bytes, void (*deleter)(void*), void* context);

/// Gives the block back at once. The Storage stays, with its version and owners; reading it throws.
void empty_storage(Storage* s);

}  // namespace weft
