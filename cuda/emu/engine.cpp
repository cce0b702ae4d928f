#include "weft/cuda/emu/engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace weft::emu {

constinit Options options;
thread_local constinit Stats stats;
thread_local constinit Here here{};

namespace {

constexpr int kNobody = -1;

bool same_text(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }
bool same_place(const Loc& a, const Loc& b) {
  if (std::memcmp(&a, &b, sizeof(Loc)) == 0) return true;
  return a.line() == b.line() && a.column() == b.column() &&
         same_text(a.file_name(), b.file_name());
}

}  // namespace

thread_local constinit Engine* Engine::of_this_thread = nullptr;

Engine& Engine::create() {
  static thread_local Engine engine;
  of_this_thread = &engine;
  return engine;
}

Engine::Engine()
    : threads_(kMaxThreads), warps_(kMaxThreads / 32), fibers_(&Engine::enter_body, kMaxThreads) {
  shared_ = static_cast<char*>(
      mmap(nullptr, kSharedMapping, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  poison(shared_, kSharedMapping);
}

Engine::~Engine() {
  of_this_thread = nullptr;
  unpoison(shared_, kSharedMapping);
  munmap(shared_, kSharedMapping);
}

void Engine::fail(const std::string& text) { throw Error("emulator: " + text, Fault::system); }

std::string Engine::where(const Loc& loc) {
  const std::string file = loc.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(loc.line());
}

unsigned Engine::full_warp(int w) const {
  const int n = std::min(32, count_ - 32 * w);
  return n == 32 ? ~0u : (1u << n) - 1;
}

void Engine::begin_grid() {
  fibers_.begin_grid();
  release(&grid_begin_);
}

void Engine::run_block(void (*body)(void*), void* context, uint3 block, dim3 block_dim,
                       std::size_t dynamic_shared) {
  {
    const Quiet quiet;
    count_ = live_ = static_cast<int>(block_dim.x * block_dim.y * block_dim.z);
    if (count_ < 1 || count_ > kMaxThreads)
      fail(message("a block must have 1 to 1024 threads, got {}", count_));
    if (dynamic_shared > kShared) fail("a block must ask for at most 227 KiB of shared memory");
    warp_count_ = (count_ + 31) / 32;
    body_ = body;
    context_ = context;
    here.block = block;
    here.block_dim = block_dim;
    for (int i = 0; i < count_; ++i) {
      Thread& t = threads_[i];
      const auto n = static_cast<unsigned>(i);
      t.index = {n % block_dim.x, n / block_dim.x % block_dim.y, n / block_dim.x / block_dim.y};
      t.fiber = nullptr;
      t.state = State::ready;
      t.copies.clear();
      t.group = 0;
    }
    for (int w = 0; w < warp_count_; ++w) {
      warps_[w].ready = warps_[w].live = full_warp(w);
      for (int i = 0; i < warps_[w].slots; ++i)  // a failed block leaves lanes waiting
        warps_[w].slot[i].mask = warps_[w].slot[i].arrived = 0;
      warps_[w].slots = 0;
    }
    for (Barrier& b : barriers_) b.arrived = 0;
    awaited_ = 0;
    set_up_shared(dynamic_shared);
    warp_ = options.order == Order::reverse ? warp_count_ - 1 : 0;
    here.current = kNobody;
    error_ = nullptr;
    random_state_ = (options.seed + block.x * 7919u) * 2654435761u + 12345u;
    ++stats.blocks;
    stats.threads += static_cast<std::uint64_t>(count_);
    main_.refresh_main();
    running_ = &main_;
#if WEFT_EMU_TSAN
    // At the addresses of the previous block this block's threads would synchronise with its.
    syncs_ = std::make_unique<char[]>(kSyncs);
    // Take all fibers here: a fiber created by another one would be ordered after that one's work.
    for (int i = 0; i < count_; ++i) threads_[i].fiber = fibers_.take();
#endif
  }
  go_on(pick());
#if WEFT_EMU_TSAN
  for (int i = 0; i < count_; ++i) fibers_.give(threads_[i].fiber);
#endif
  if (error_ || live_ > 0) {
    const std::exception_ptr error = error_;
    const std::string text = stuck();
    abandon();
    if (error) std::rethrow_exception(error);
    fail(text);
  }
}

void Engine::enter_body() {
  Fiber::arrived();
  get().threads_on_this_fiber();
}

// Main loop of a fiber: runs one thread after another until one of them has to wait.
void Engine::threads_on_this_fiber() {
  for (;;) {
    const int t = here.current;
    bool failed = false;
    acquire(&grid_begin_);
    try {
      body_(context_);
      if (!threads_[t].copies.empty())
        fail(message("thread {} ends with asynchronous copies that nobody waited for", t));
    } catch (...) {
      const Quiet quiet;
      error_ = std::current_exception();
      failed = true;
      release(&block_end_);
    }
    if (!failed) failed = !end_thread(t);
    if (failed) {
      switch_to(main_);
      continue;
    }
    const int next = pick();
    if (next == kNobody) {
#if !WEFT_EMU_TSAN
      fibers_.give(threads_[t].fiber);
#endif
      switch_to(main_);
      continue;
    }
#if WEFT_EMU_TSAN
    go_on(next);
#else
    if (threads_[next].fiber) {
      fibers_.give(threads_[t].fiber);
      go_on(next);
    } else {
      threads_[next].fiber = threads_[t].fiber;
      here.current = next;
      here.thread = threads_[next].index;
    }
#endif
  }
}

// Returns false when the remaining threads can no longer complete a barrier at which some wait.
bool Engine::end_thread(int t) {
  release(&block_end_);
  threads_[t].state = State::done;
  --live_;
  Warp& w = warps_[t >> 5];
  w.live &= ~(1u << (t & 31));
  w.ready &= ~(1u << (t & 31));
  for (unsigned rest = awaited_; rest; rest &= rest - 1) {
    const Barrier& b = barriers_[std::countr_zero(rest)];
    if (b.arrived != live_) continue;
    const Quiet quiet;
    error_ = std::make_exception_ptr(
        Error(message("emulator: {} of {} threads exited without reaching the barrier at {}",
                      count_ - live_, count_, where(b.loc)),
              Fault::system));
    return false;
  }
  return true;
}

void Engine::barrier(int id, int expected, const char* what, const Loc& loc) {
  const int me = here.current;
  Thread& t = threads_[me];
  Barrier& b = barriers_[id];
  if (expected >= 0 && (expected == 0 || expected % 32 != 0))
    fail(message("{}: whole warps must meet at a barrier, got {} threads, at {}", what, expected,
                 where(loc)));
  if (b.arrived > 0 && b.expected != expected)
    fail(message("barrier {}: all must expect as many threads, got {} at {} and {} at {}", id,
                 b.expected, where(b.loc), expected, where(loc)));
  if (b.arrived > 0 && expected < 0 && !same_place(b.loc, loc))
    fail(message("threads of one block wait at different barriers: {} and {}", where(b.loc),
                 where(loc)));
  b.loc = loc;
  b.expected = expected;
  ++b.arrived;
  awaited_ |= 1u << id;
  t.state = State::barrier;
  t.barrier = id;
  t.what = what;
  t.loc = loc;
  warps_[me >> 5].ready &= ~(1u << (me & 31));
  void* const sync = &syncs_[2 * static_cast<unsigned>(id) + (b.phase & 1)];
  release(sync);
  if (b.arrived == (expected < 0 ? live_ : expected)) {
    if (expected < 0 && live_ != count_)
      fail(message("{} of {} threads exited before {} at {}", count_ - live_, count_, what,
                   where(loc)));
    open_barrier(id);
  }
  if (t.state != State::ready) wait();
  acquire(sync);
}

void Engine::open_barrier(int id) {
  barriers_[id].arrived = 0;
  awaited_ &= ~(1u << id);
  ++barriers_[id].phase;
  for (int i = 0; i < count_; ++i) {
    if (threads_[i].state != State::barrier || threads_[i].barrier != id) continue;
    threads_[i].state = State::ready;
    warps_[i >> 5].ready |= 1u << (i & 31);
  }
}

Engine::Slot& Engine::join(unsigned mask, void* arg, const char* what, const Loc& loc) {
  const int me = here.current, lane = me & 31;
  Warp& w = warps_[me >> 5];
  if (!(mask >> lane & 1))
    fail(message("{}: the mask must name the calling lane {}, at {}", what, lane, where(loc)));
  if (mask & full_warp(me >> 5) & ~w.live)
    fail(message("{}: the mask names a lane that has exited, at {}", what, where(loc)));
  Slot* slot = nullptr;
  for (int i = 0; i < w.slots && !slot; ++i)
    if (w.slot[i].mask == mask) slot = &w.slot[i];
  for (int i = 0; i < w.slots && !slot; ++i)
    if (w.slot[i].mask == 0) slot = &w.slot[i];
  if (!slot) {
    slot = &w.slot[w.slots];
    slot->syncs = &syncs_[2 * (16 + (me & ~31) + w.slots++)];
  }
  if (slot->mask == 0 || slot->arrived == 0) {
    slot->mask = mask;
    slot->needed = mask & w.live;
    slot->arrived = 0;
  } else if (!same_text(slot->what, what) || !same_place(slot->loc, loc)) {
    fail(message("lanes of one warp wait at different places: in {} at {} and in {} at {}",
                 slot->what, where(slot->loc), what, where(loc)));
  }
  slot->what = what;
  slot->loc = loc;
  slot->args[lane] = arg;
  slot->arrived |= 1u << lane;
  threads_[me].what = what;
  threads_[me].loc = loc;
  release(slot->sync());
  return *slot;
}

void Engine::wait_in(Slot& slot) {
  const int me = here.current;
  void* const sync = slot.sync();
  threads_[me].state = State::warp;
  warps_[me >> 5].ready &= ~(1u << (me & 31));
  wait();
  acquire(sync);
}

void Engine::leave(Slot& slot) {
  const int me = here.current;
  release(slot.sync());
  const unsigned others = slot.needed & ~(1u << (me & 31));
  slot.mask = slot.arrived = 0;
  ++slot.phase;
  warps_[me >> 5].ready |= others;
  for (unsigned rest = others; rest; rest &= rest - 1)
    threads_[(me & ~31) + std::countr_zero(rest)].state = State::ready;
}

int Engine::pick() {
  switch (options.order) {
    case Order::forward:
      return pick_forward();
    case Order::reverse:
      return pick_reverse();
    case Order::random:
      break;
  }
  return pick_random();
}

// Picks the next lane of the same warp, then of the next warps.
int Engine::pick_forward() {
  if (const unsigned ready = warps_[warp_].ready) {
    const int me = here.current;
    const unsigned after = me >= 0 && me >> 5 == warp_ ? ready & ~((2u << (me & 31)) - 1) : ready;
    return warp_ * 32 + std::countr_zero(after ? after : ready);
  }
  for (int k = 1, w = warp_; k < warp_count_; ++k) {
    if (++w == warp_count_) w = 0;
    if (!warps_[w].ready) continue;
    warp_ = w;
    return w * 32 + std::countr_zero(warps_[w].ready);
  }
  return kNobody;
}

int Engine::pick_reverse() {
  for (int k = 0; k < warp_count_; ++k) {
    const int w = (warp_ - k + warp_count_) % warp_count_;
    if (!warps_[w].ready) continue;
    warp_ = w;
    return w * 32 + 31 - std::countl_zero(warps_[w].ready);
  }
  return kNobody;
}

int Engine::pick_random() {
  const auto start = static_cast<int>(random() % static_cast<unsigned>(warp_count_));
  for (int k = 0; k < warp_count_; ++k) {
    const int w = (start + k) % warp_count_;
    unsigned ready = warps_[w].ready;
    if (!ready) continue;
    for (auto skip = random() % static_cast<unsigned>(std::popcount(ready)); skip > 0; --skip)
      ready &= ready - 1;
    return w * 32 + std::countr_zero(ready);
  }
  return kNobody;
}

std::uint32_t Engine::random() {
  random_state_ = random_state_ * 1664525u + 1013904223u;
  return random_state_ >> 8;
}

// The running thread cannot continue: switches to another one, or fails if the block is deadlocked.
void Engine::wait() {
  const int me = here.current, next = pick();
  if (next == kNobody)
    switch_to(main_);
  else if (next != me)
    go_on(next);
  here.current = me;
  here.thread = threads_[me].index;
}

void Engine::go_on(int t) {
  here.current = t;
  here.thread = threads_[t].index;
  if (!threads_[t].fiber) {
    const Quiet quiet;
    threads_[t].fiber = fibers_.take();
  }
  switch_to(*threads_[t].fiber);
}

void Engine::switch_to(Fiber& next) {
  Fiber& from = *running_;
  running_ = &next;
  ++stats.switches;
  next.enter(from);
}

void Engine::abandon() {
  fibers_.reset_all();
  live_ = 0;
  error_ = nullptr;
}

std::string Engine::stuck() const {
  std::string text = message("threads of block ({}, {}, {}) wait for ever:", here.block.x,
                             here.block.y, here.block.z);
  const auto waits = [&](int i) {
    return threads_[i].state == State::barrier || threads_[i].state == State::warp;
  };
  int shown = 0;
  for (int i = 0; i < count_ && shown < 6;) {
    int j = i;
    while (j < count_ && threads_[j].state == threads_[i].state &&
           threads_[j].loc.line() == threads_[i].loc.line())
      ++j;
    if (waits(i)) {
      text += message(" threads {} to {} in {} at {};", i, j - 1, threads_[i].what,
                      where(threads_[i].loc));
      ++shown;
    }
    i = j;
  }
  return text + message(" {} of {} have exited", count_ - live_, count_);
}

}  // namespace weft::emu
