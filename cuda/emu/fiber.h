#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "weft/cuda/emu/sanitizer.h"

namespace weft::emu {

/// A separate stack that can be left and re-entered: a waiting CUDA thread stays suspended on one.
/// A switch takes 14 instructions on x86-64.
class Fiber {
 public:
  /// The fiber of the caller's stack.
  Fiber();
  /// Runs entry() on a new stack when first entered; entry must never return. `number` staggers the
  /// stacks, which would otherwise share cache sets.
  Fiber(void (*entry)(), unsigned number);
  ~Fiber();
  Fiber(const Fiber&) = delete;

  /// Restarts the fiber. Objects on its stack are not destroyed.
  void reset();
  /// Suspends the running fiber `from` and continues this one.
  void enter(Fiber& from);
  /// Registers the fiber of the calling OS thread, before a block runs on it.
  void refresh_main();
  /// entry() must call this first.
  static void arrived();

 private:
  void* stack_pointer_ = nullptr;
  char* mapping_ = nullptr;  // guard page, then the stack; null for the caller's own stack
  void (*entry_)() = nullptr;
  std::size_t stagger_ = 0;
  void* asan_stack_ = nullptr;
  const void* low_ = nullptr;
  std::size_t size_ = 0;
  void* tsan_ = nullptr;
};

/// A pool of reusable fibers.
class FiberPool {
 public:
  /// At most `most` can be in use at once.
  FiberPool(void (*entry)(), std::size_t most) : entry_(entry), most_(most) {}
  Fiber* take();
  void give(Fiber* f) { (WEFT_EMU_TSAN ? used_ : free_).push_back(f); }
  /// ThreadSanitizer takes two CUDA threads on one fiber for one thread, whose accesses are
  /// ordered. Blocks of a grid must not share fibers; the next grid may use them again, since a new
  /// fiber costs a thousand times as much as a switch.
  void begin_grid();
  /// Restarts all fibers, including those that were not returned.
  void reset_all();

 private:
  void (*entry_)();
  std::size_t most_;
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> free_, used_;  // used_: by this grid, to be restarted before another use
};

}  // namespace weft::emu
