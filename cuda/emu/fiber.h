#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "weft/cuda/emu/sanitizer.h"

namespace weft::emu {

/// A stack of its own that can be left and entered again: a CUDA thread that waits keeps its place
/// on one. A switch is 14 instructions on x86-64.
class Fiber {
 public:
  /// The fiber of the stack that the caller is on.
  Fiber();
  /// Runs entry() on a new stack when first switched to; entry must never return. `number` staggers
  /// the stacks, which would otherwise share cache sets.
  Fiber(void (*entry)(), unsigned number);
  ~Fiber();
  Fiber(const Fiber&) = delete;

  /// Starts over: forgets where it was. What lay on its stack is not destroyed.
  void reset();
  /// Leaves the running fiber `from` and goes on in this one.
  void enter(Fiber& from);
  /// Announces the fiber of the calling OS thread, before a block runs on it.
  void refresh_main();
  /// The first thing that entry() calls.
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

/// Fibers for reuse.
class FiberPool {
 public:
  explicit FiberPool(void (*entry)()) : entry_(entry) {}
  Fiber* take();
  void give(Fiber* f) { free_.push_back(f); }
  /// All of them start over, also those that were not given back.
  void reset_all();

 private:
  void (*entry_)();
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> free_;
};

}  // namespace weft::emu
