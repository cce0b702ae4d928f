#pragma once
// What a tape is made of; only the sources of the tape look here.
#include <memory>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/autograd/tape_memory.h"

namespace weft {

/// A recorded op. Lives in the arena, as do its ids and its lambda.
struct Tape::Node {
  Node* previous;
  const char* name;
  void* fn;
  Invoke invoke;
  Destroy destroy;
  const std::uint64_t* inputs;  ///< ids; 0 for an input that needs no gradient
  const std::uint64_t* outputs;
  int input_count, output_count;
  std::int64_t saved_bytes;
  Shape shape;  ///< of the first output
};

/// The gradient of a tensor while the tape runs.
struct Tape::Slot {
  Tensor grad;
  std::int32_t leaf = -1;  ///< its number on the tape; -1: not a leaf
  bool wanted = false;     ///< collect() returns it: keep it after its node has run
  bool in_main = false;    ///< part of it was added to the leaf's main_grad already
  bool continued = false;  ///< it began as the leaf's grad() of earlier passes
};

/// A tensor that no recorded op made. The tape holds a handle, so its address stands for it, and
/// nothing is written to the tensor, which other threads may be recording at the same time.
struct Tape::Leaf {
  Tensor tensor;
  std::uint64_t id;
  int uses = 0;  ///< by recorded ops, not yet answered by backward
  bool reached = false;
  bool claimed = false;  ///< by this tape, while it adds to the leaf's gradient
  static std::uint64_t key(const Tensor& x) { return reinterpret_cast<std::uintptr_t>(x.impl()); }
};

struct Tape::State {
  TapeArena arena;
  Node* last = nullptr;
  std::vector<Leaf> leaves;
  NumberTable leaf_numbers;      ///< by address
  std::vector<Slot> slots;       ///< by id - base
  std::vector<Slot> old_slots;   ///< of tensors of outer tapes
  NumberTable old_slot_numbers;  ///< by id

  /// Those of tapes that have ended, for the next ones on this thread.
  static std::vector<std::unique_ptr<State>>& pool() {
    static thread_local std::vector<std::unique_ptr<State>> free;
    return free;
  }
};

/// Are these handles all that can see the memory of t?
inline bool owned_by(const Tensor& t, int handles) {
  return t.impl()->refs.load() == handles && t.storage()->refs.load() == 1;
}

// A replayed region's inputs are its own; what is older belongs to the tape that asked for the
// replay, and is summed there as if the region had not been: with the same bits, and without a
// second buffer.
inline Tape& Tape::holder(std::uint64_t id) {
  Tape* tape = this;
  while (tape->parent_ && id < tape->base_) tape = tape->parent_;
  return *tape;
}

inline Tape::Slot& Tape::slot(std::uint64_t id) {
  State& s = *state_;
  if (id < base_) {
    const auto i = static_cast<std::size_t>(s.old_slot_numbers.add(id));
    if (i == s.old_slots.size()) s.old_slots.emplace_back();
    return s.old_slots[i];
  }
  const std::size_t i = id - base_;
  if (i >= s.slots.size()) s.slots.resize(std::max<std::size_t>(i + 1, next_id_ - base_));
  return s.slots[i];
}

}  // namespace weft
