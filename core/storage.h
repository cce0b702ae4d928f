#pragma once
#include <cstdint>

#include "weft/core/allocator.h"
#include "weft/core/atomic_cells.h"
#include "weft/core/device.h"
#include "weft/core/stream_set.h"

namespace weft {

struct Slab;
class Restorer;
namespace detail {
class SharedCache;
}

/// A reference-counted block of memory with the version number that in-place writes increment.
/// Cached blocks keep their header, so reusing one takes two list operations.
struct Storage {
  RefCount refs;
  std::uint32_t version = 0;
  void* data = nullptr;          ///< null on the meta device, when empty, and after release
  std::int64_t bytes = 0;        ///< as requested
  std::int64_t capacity = 0;     ///< size-class bytes of the request; of the block when cached
  std::int16_t size_class = -1;  ///< of the block
  std::int16_t stream = -1;      ///< on a GPU: the stream whose kernels may use it
  cuda::StreamSet used_on;       ///< on a GPU: further streams, see record_stream()
  Device device;
  Category category = Category::other;
  bool released = false;             ///< emptied by release_storage(): reading throws
  bool guarded = false;              ///< allocated in debug mode
  bool shared_empty = false;         ///< the shared empty storage of its device: never freed
  Restorer* restorer = nullptr;      ///< with `released`: brings the contents back; owned
  void (*deleter)(void*) = nullptr;  ///< for memory that Weft does not own
  void* deleter_context = nullptr;

  // Links of the allocator's lists; valid only while the block is cached.
  Storage *class_prev = nullptr, *class_next = nullptr;
  Storage *lru_prev = nullptr, *lru_next = nullptr;
  Slab* slab = nullptr;
  detail::SharedCache* cache = nullptr;  ///< where the block goes when freed

  void retain() { refs.retain(); }
  void release() {
    if (refs.release()) free_storage(this);
  }

  static void free_storage(Storage* s);
};

/// Allocates a block of at least `bytes`. `fill_nan`: debug mode fills it with NaN. 0 bytes give
/// the shared empty storage of the device.
/// Throws Error (Fault::system) when the system is out of memory after all cached blocks were
/// returned to it.
Storage* allocate_storage(std::int64_t bytes, Device device, bool fill_nan);

/// Wraps memory owned by the caller; `deleter(context)` runs when the last tensor releases it.
Storage* wrap_storage(void* data, std::int64_t bytes, void (*deleter)(void*), void* context);

/// A block of host memory that memory_stats() shows neither as live nor as cached, for contents
/// that stay as long as something outside of the program takes. It comes from the allocator's
/// cache, and give_back_uncounted() returns it there: memory that was used before needs no fresh
/// pages from the system. Null when there is no memory.
Storage* take_uncounted(std::int64_t bytes);
void give_back_uncounted(Storage* block);

/// Frees the block at once. The Storage stays, with its version and owners; reading it throws.
void empty_storage(Storage* s);
/// Moves the block of `from` to `to`, which was released and had as many bytes.
void move_block(Storage* from, Storage* to);

}  // namespace weft
