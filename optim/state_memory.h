#pragma once
#include "weft/core/offload_memory.h"
#include "weft/core/tensor.h"

namespace weft::optim {

/// Optimizers that this thread makes until the end of the scope keep their states and f32 master
/// weights in a memory-mapped file: the system writes pages that no step needs to the disk, and
/// takes them back. They do not count as live. On the CPU and its meta device; `memory` must
/// outlive the optimizers. What finds no room in the file stays in memory.
class StateMemory {
 public:
  explicit StateMemory(OffloadMemory& memory);
  ~StateMemory();
  StateMemory(const StateMemory&) = delete;

  /// A state of zeros: in the memory in use, or a tensor like any other.
  static Tensor zeros(const Shape& shape, DType dtype, Device device);

 private:
  OffloadMemory* const previous_;
};

}  // namespace weft::optim
