#pragma once
// Internal state of a tape; only the sources of the tape include this.
#include <memory>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/autograd/tape_memory.h"

namespace weft {

/// A recorded op. It lives in the arena, with its ids and its lambda.
struct Tape::Node {
  Node* previous;
  const char* name;
  void* fn;
  Invoke invoke;
  Destroy destroy;
  const std::uint64_t* inputs;  ///< ids; 0 for an input that needs no gradient
  const std::uint64_t* outputs;
  int input_count, output_count;
  std::int32_t profile_scope;
  std::int64_t saved_bytes;
  Shape shape;          ///< shape of the first output
  const Shape* others;  ///< shapes of the other outputs
};

/// The gradient of a tensor while the tape runs.
struct Tape::Slot {
  Tensor grad;
  std::int32_t leaf = -1;  ///< index among the tape's leaves; -1: not a leaf
  bool wanted = false;     ///< collect() returns it: keep it after its node has run
  bool in_main = false;    ///< a kernel has already written the leaf's main_grad()
  bool continued = false;  ///< accumulation started from the leaf's grad() of earlier passes
  bool wide = false;       ///< of 16 bits, with a sum in f32 on this device
  Device device = {};
};

/// A tensor that no recorded op produced, identified by its address; the tape holds a handle. The
/// tape writes nothing to the tensor, which other threads may record at the same time.
struct Tape::Leaf {
  Tensor tensor;
  std::uint64_t id;
  int uses = 0;  ///< uses by recorded ops for which backward has not run yet
  bool reached = false;
  bool claimed = false;  ///< this tape is adding to the leaf's gradient
  static std::uint64_t key(const Tensor& x) { return reinterpret_cast<std::uintptr_t>(x.impl()); }
};

struct Tape::State {
  TapeArena arena;
  Node* last = nullptr;
  std::vector<Leaf> leaves;
  NumberTable leaf_numbers;      ///< keys: addresses
  std::vector<Slot> slots;       ///< indexed by id - base_
  std::vector<Slot> old_slots;   ///< slots of tensors of outer tapes
  NumberTable old_slot_numbers;  ///< keys: ids

  /// States of ended tapes, reused by later tapes of this thread.
  static std::vector<std::unique_ptr<State>>& pool() {
    static thread_local std::vector<std::unique_ptr<State>> free;
    return free;
  }
};

namespace detail {

/// Whether the main_grad() of x holds a gradient, to which the next one is added. The caller writes
/// it at once: from now on it holds one. A buffer that was released until it is needed gets memory.
bool continue_main_grad(const Tensor& x);

}  // namespace detail

/// True if the memory of t has exactly `handles` handles and no other owner.
inline bool owned_by(const Tensor& t, int handles) {
  return t.impl()->refs.load() == handles && t.storage()->refs.load() == 1;
}

// The tape that holds the gradient of a tensor. Tensors older than a replay belong to the tape that
// started it; their gradients are summed there as without recompute: same bits, no second buffer.
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
