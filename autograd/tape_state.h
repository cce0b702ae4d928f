#pragma once
// What a tape is made of: seen by tape.cpp (recording), tape_backward.cpp (running) and
// delay_gradients.cpp only.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "weft/autograd/tape.h"

namespace weft {

/// Memory for nodes: bump allocation in chunks that are kept from tape to tape.
class TapeArena {
 public:
  void* take(std::size_t bytes) {
    bytes = (bytes + 15) & ~std::size_t{15};
    while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].size) {
      ++chunk_;
      used_ = 0;
    }
    if (chunk_ == chunks_.size()) {
      const std::size_t size = std::max(bytes, kChunk);
      chunks_.push_back(
          {std::make_unique<std::max_align_t[]>(size / sizeof(std::max_align_t) + 1), size});
      used_ = 0;
    }
    char* p = reinterpret_cast<char*>(chunks_[chunk_].memory.get()) + used_;
    used_ += bytes;
    return p;
  }
  void reset() { chunk_ = used_ = 0; }

 private:
  static constexpr std::size_t kChunk = 1 << 16;
  struct Chunk {
    std::unique_ptr<std::max_align_t[]> memory;
    std::size_t size;
  };
  std::vector<Chunk> chunks_;
  std::size_t chunk_ = 0, used_ = 0;
};

/// Names the op whose backward runs, for messages of what it saved.
class RunningOp {
 public:
  explicit RunningOp(const char* op) : previous_(std::exchange(current, op)) {}
  ~RunningOp() { current = previous_; }
  RunningOp(const RunningOp&) = delete;
  static constinit thread_local const char* current;

 private:
  const char* previous_;
};

/// Lives in the arena, followed by input ids, output ids and the lambda.
struct Tape::Node {
  Node* previous;
  const char* name;
  void* fn;
  Invoke invoke;
  Destroy destroy;
  const std::uint64_t* inputs;  ///< 0 for an input that needs no gradient
  const std::uint64_t* outputs;
  std::int32_t input_count, output_count;
  std::int64_t saved_bytes;
  Shape shape;  ///< of the first output
};

/// A part of a backward that waits. Lives in the arena, followed by the slots and the lambda.
struct Tape::PutOff {
  PutOff* next;
  Backward backward;
  void* fn;
  Invoke invoke;
  Destroy destroy;
  const std::uint64_t* slots;  ///< of the leaves whose gradients wait for it
  int slot_count;
};

struct Tape::Slot {
  Tensor grad;
  std::int32_t leaf = -1;
  std::int32_t put_off = 0;  ///< how many parts of the gradient wait
  bool wanted = false;       ///< gradients() returns it: keep it after its node has run
  bool in_main = false;      ///< part of the gradient was added to the leaf's main_grad already
  bool continued = false;    ///< grad began as the leaf's grad() of earlier passes
};

/// Slots of tensors that are older than the tape: open addressing, kept warm between tapes.
struct Tape::OldSlots {
  std::vector<std::uint64_t> keys;  ///< 0: free
  std::vector<Slot> slots;
  std::size_t used = 0;

  Slot& at(std::uint64_t id) {
    if (2 * (used + 1) > keys.size()) grow();
    std::size_t i = place(id);
    if (keys[i] == 0) {
      keys[i] = id;
      ++used;
    }
    return slots[i];
  }
  void clear() {
    if (used == 0) return;
    std::fill(keys.begin(), keys.end(), 0);
    for (Slot& s : slots) s = {};
    used = 0;
  }

 private:
  std::size_t place(std::uint64_t id) const {
    std::size_t i = id * 0x9e3779b97f4a7c15u >> 32 & (keys.size() - 1);
    while (keys[i] != 0 && keys[i] != id) i = (i + 1) & (keys.size() - 1);
    return i;
  }
  void grow() {
    std::vector<std::uint64_t> old_keys(std::max<std::size_t>(64, 2 * keys.size()));
    std::vector<Slot> old_slots(old_keys.size());
    keys.swap(old_keys);
    slots.swap(old_slots);
    for (std::size_t i = 0; i < old_keys.size(); ++i) {
      if (old_keys[i] == 0) continue;
      const std::size_t to = place(old_keys[i]);
      keys[to] = old_keys[i];
      slots[to] = std::move(old_slots[i]);
    }
  }
};

struct Tape::Leaf {
  Tensor tensor;
  std::uint64_t id;
  int uses = 0;   ///< not yet answered by backward
  int total = 0;  ///< recorded
  bool reached = false;
  bool claimed = false;  ///< by this tape, while it adds to the leaf's gradient
};

/// Which leaf of this tape a tensor is: open addressing, kept warm between tapes. The tape holds a
/// handle of every leaf, so an address stands for one tensor as long as it is in here. Nothing is
/// written to the leaf, which other threads may be recording at the same time.
struct Tape::LeafTable {
  std::vector<const TensorImpl*> keys;  ///< null: free
  std::vector<std::int32_t> leaves;
  std::size_t used = 0;

  /// -1 for none.
  std::int32_t find(const TensorImpl* leaf) const {
    if (used == 0) return -1;
    const std::size_t i = place(leaf);
    return keys[i] ? leaves[i] : -1;
  }
  void add(const TensorImpl* leaf, std::int32_t number) {
    if (2 * (used + 1) > keys.size()) grow();
    const std::size_t i = place(leaf);
    keys[i] = leaf;
    leaves[i] = number;
    ++used;
  }
  void clear() {
    if (used == 0) return;
    std::fill(keys.begin(), keys.end(), nullptr);
    used = 0;
  }

 private:
  std::size_t place(const TensorImpl* leaf) const {
    const std::uint64_t hash = reinterpret_cast<std::uintptr_t>(leaf) * 0x9e3779b97f4a7c15u;
    std::size_t i = hash >> 32 & (keys.size() - 1);
    while (keys[i] && keys[i] != leaf) i = (i + 1) & (keys.size() - 1);
    return i;
  }
  void grow() {
    std::vector<const TensorImpl*> old_keys(std::max<std::size_t>(16, 2 * keys.size()));
    std::vector<std::int32_t> old_leaves(old_keys.size());
    keys.swap(old_keys);
    leaves.swap(old_leaves);
    for (std::size_t i = 0; i < old_keys.size(); ++i) {
      if (!old_keys[i]) continue;
      const std::size_t to = place(old_keys[i]);
      keys[to] = old_keys[i];
      leaves[to] = old_leaves[i];
    }
  }
};

struct Tape::State {
  TapeArena arena;
  Node* last = nullptr;
  PutOff *first_put_off = nullptr, *last_put_off = nullptr;
  std::vector<Slot> slots;  ///< by id - base
  OldSlots old;             ///< ids below base: tensors of an outer tape
  std::vector<Leaf> leaves;
  LeafTable leaf_table;
  std::vector<std::int32_t> counted;  ///< the leaf of each use by an unrecorded first pass
  bool heard_backward = false;        ///< a tape inside this one has run backwards
};

// A sum of which parts wait goes on in its order.
inline void Tape::run_put_off_before(std::uint64_t id) {
  if (state_->first_put_off && slot(id).put_off > 0) [[unlikely]]
    run_put_off();
}

}  // namespace weft
