// Shared memory of a block, and asynchronous copies into it.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "weft/cuda/emu/control.h"
#include "weft/cuda/emu/engine.h"

namespace weft::emu {
namespace {

constexpr std::size_t kRedZone = 32;  // between shared variables

void copy(void* to, const void* from, int bytes) {
  if (from)
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  else
    std::memset(to, 0, static_cast<std::size_t>(bytes));
}

}  // namespace

// Instrumented, unlike engine.cpp: the copy counts as the kernel's own access.
void Engine::copy_later(void* to, const void* from, int bytes) {
  bool now;
  {
    const Quiet quiet;
    Thread& t = threads_[here.current];
    now = options.order == Order::reverse || (options.order == Order::random && random() % 2 == 0);
    t.copies.push_back({to, from, now ? 0 : bytes, t.group});  // needs a wait in any case
  }
  if (now) return copy(to, from, bytes);
#if WEFT_EMU_TSAN
  // The copy may complete at any time from here on, so any other access to the target is a race.
  auto* const p = static_cast<volatile char*>(to);
  for (int i = 0; i < bytes; ++i) p[i] = p[i];
#endif
}

void Engine::commit_copies() {
  const Quiet quiet;
  ++threads_[here.current].group;
}

void Engine::finish_copies(int groups_left) {
  std::vector<Copy> due;
  {
    const Quiet quiet;
    Thread& t = threads_[here.current];
    const auto later = [&](const Copy& c) { return c.group >= t.group - groups_left; };
    for (const Copy& c : t.copies)
      if (!later(c)) due.push_back(c);
    std::erase_if(t.copies, [&](const Copy& c) { return !later(c); });
  }
  for (const Copy& c : due) copy(c.to, c.from, c.bytes);
}

void* Engine::shared_variable(const void* key, std::size_t bytes, std::size_t alignment) {
  const Quiet quiet;
  for (const Variable& v : variables_)
    if (v.key == key) return v.at;
  const auto aligned = [&](std::size_t n) { return (n + alignment - 1) / alignment * alignment; };
  const std::size_t at = aligned(shared_top_);
  variable_bytes_ = aligned(variable_bytes_) + bytes;
  // On a GPU the dynamic memory begins behind the variables, and its alignment is theirs.
  const std::size_t most = static_cast<std::size_t>(control.shared_bytes),
                    used = dynamic_bytes_ > 0 ? aligned(variable_bytes_) + dynamic_bytes_
                                              : variable_bytes_;
  if (used > most)
    fail(message("a block must use at most {} bytes of shared memory, got {}", most, used));
  variables_.push_back({key, shared_ + at});
  shared_top_ = at + bytes + kRedZone;
  unpoison(shared_ + at, bytes);
  std::memset(shared_ + at, 0xff, bytes);  // NaN in every floating format
  return shared_ + at;
}

// What lies beyond the variables of the previous block is still poisoned.
void Engine::set_up_shared(std::size_t dynamic) {
  unpoison(shared_, dynamic);
#if WEFT_EMU_TSAN
  // New pages, so that the previous block's accesses do not race with this one's.
  mmap(shared_, kSharedMapping, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
       0);
#endif
  std::memset(shared_, 0xff, dynamic);
  if (shared_top_ > dynamic) poison(shared_ + dynamic, shared_top_ - dynamic);
  variables_.clear();
  shared_top_ = dynamic + kRedZone;
  variable_bytes_ = 0;
  dynamic_bytes_ = dynamic;
}

}  // namespace weft::emu
