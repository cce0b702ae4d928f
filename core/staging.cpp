#include "weft/core/staging.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <vector>

#include "weft/core/dispatch.h"
#include "weft/core/kernels/cuda_runtime.h"

namespace weft::cuda::detail {
namespace {

constexpr std::int64_t kLeast = 64 << 10;
// Limit per device: without it, a host that runs far ahead would allocate more and more.
constexpr std::int64_t kMaxPinned = 4 * kMaxStaged;

std::atomic<std::int64_t> pinned_bytes{0};

struct Buffer {
  char* data;
  std::int64_t bytes;
  Event copied;  // after the last copy from this buffer
};

class Staging {
 public:
  // Never destroyed: the driver may already be gone.
  static Staging& of(int device) {
    static auto* const all = new Staging[kMaxDevices];
    return all[device];
  }

  void copy(void* to, const void* from, std::int64_t bytes, const Stream& stream) {
    {
      const std::lock_guard lock(mutex_);
      Buffer* const buffer = bytes <= kMaxStaged ? take(bytes) : nullptr;
      if (buffer) from = std::memcpy(buffer->data, from, static_cast<std::size_t>(bytes));
      use_device(stream.device().index);
      if constexpr (kWithCuda) rt::copy(to, from, bytes, rt::CopyKind::to_device, stream.handle());
      if (buffer) return buffer->copied.record(stream);
    }
    // Some machines copy directly from the host's pages, after the call has returned.
    if constexpr (kWithCuda) rt::synchronize_stream(stream.handle());
  }

 private:
  // Returns the smallest free buffer that is large enough, or a new one; null at the limit.
  Buffer* take(std::int64_t bytes) {
    Buffer* best = nullptr;
    for (Buffer& b : buffers_)
      if (b.bytes >= bytes && (!best || b.bytes < best->bytes) && b.copied.done()) best = &b;
    if (best) return best;
    const auto room = static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(bytes > kLeast ? bytes : kLeast)));
    if (total_ + room > most_) return nullptr;
    char* data = nullptr;
    if constexpr (kWithCuda) data = static_cast<char*>(rt::allocate_pinned(room));
    if (!data) {  // the system pins no more
      most_ = total_;
      return nullptr;
    }
    total_ += room;
    pinned_bytes += room;
    buffers_.push_back({data, room, Event()});
    return &buffers_.back();
  }

  std::mutex mutex_;
  std::vector<Buffer> buffers_;
  std::int64_t total_ = 0, most_ = kMaxPinned;
};

}  // namespace

void upload(void* to, const void* from, std::int64_t bytes, const Stream& stream) {
  if (bytes > 0) Staging::of(stream.device().index).copy(to, from, bytes, stream);
}

std::int64_t staging_bytes() { return pinned_bytes; }

}  // namespace weft::cuda::detail
