#include "weft/core/block_guards.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/memory_trace.h"
#include "weft/core/shared_cache.h"

namespace weft {
namespace {

constexpr unsigned char kGuardByte = 0xa5, kPoisonByte = 0xff;  // 0xff.. is NaN in every format

std::atomic<std::int64_t> broken_guards{0};

}  // namespace

namespace detail {

void arm_guards(Storage* s, bool fill_nan) {
  char* base = static_cast<char*>(s->data);
  permit(base, s->capacity);
  std::memset(base, kGuardByte, kGuard);
  std::memset(base + kGuard + s->bytes, kGuardByte,
              static_cast<std::size_t>(s->capacity - kGuard - s->bytes));
  if (fill_nan) std::memset(base + kGuard, kPoisonByte, static_cast<std::size_t>(s->bytes));
  s->data = base + kGuard;
  s->guarded = true;
  forbid(base, kGuard);
  forbid(base + kGuard + s->bytes, s->capacity - kGuard - s->bytes);
}

void disarm_guards(Storage* s) {
  char* base = static_cast<char*>(s->data) - kGuard;
  permit(base, s->capacity);
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

}  // namespace detail

void set_debug_allocator(bool on) {
  if (on)
    detail::block_watchers.fetch_or(detail::kDebugBlocks);
  else
    detail::block_watchers.fetch_and(~detail::kDebugBlocks);
}
bool debug_allocator() {
  return (detail::block_watchers.load(std::memory_order_relaxed) & detail::kDebugBlocks) != 0;
}

void check_guard_zones() {
  const std::int64_t n = broken_guards.load();
  check(n == 0, "allocator: guard zones were overwritten, got {} of them", n);
}

}  // namespace weft
