#pragma once
#include "weft/core/allocator.h"

namespace weft::test {

/// In this scope new tensors of numbers hold NaN.
struct PoisonedMemory {
  PoisonedMemory() { set_debug_allocator(true); }
  ~PoisonedMemory() { set_debug_allocator(false); }
  PoisonedMemory(const PoisonedMemory&) = delete;
};

}  // namespace weft::test
