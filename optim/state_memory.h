#pragma once
#include "weft/core/offload_memory.h"
#include "weft/core/tensor.h"

namespace weft::optim {

/// Optimizers that this thread makes until the end of the scope keep their states and master
/// weights outside. On the CPU in a memory-mapped file, where steps use them in place: the system
/// writes pages that no step needs to the disk, and takes them back. On a GPU in pinned memory of
/// the host, from which a step brings a group of parameters at a time. They do not count as live.
/// What finds no room stays in memory. `memory` must outlive the optimizers.
class StateMemory {
 public:
  explicit StateMemory(OffloadMemory& memory);
  ~StateMemory();
  StateMemory(const StateMemory&) = delete;

  /// The memory in use, or null.
  static OffloadMemory* current();
  /// A state of zeros: on the CPU in the memory in use; else a tensor like any other.
  static Tensor zeros(const Shape& shape, DType dtype, Device device);

 private:
  OffloadMemory* const previous_;
};

}  // namespace weft::optim
