// The stack of tapes and guards, and the numbers of tensors: what a tape that is opened or ended
// has to do with the others of its thread.
#include "weft/autograd/tape_scope.h"

#include <atomic>

#include "weft/autograd/tape_state.h"

namespace weft {
namespace {

// Every thread numbers tensors in blocks of its own, so a tensor that another thread has recorded
// is never taken for one of this thread's. 0 means: no number.
constexpr std::uint64_t kBlock = 2 * Tape::kReach;
std::atomic<std::uint64_t> next_block{kBlock};

}  // namespace

constinit thread_local TapeScope* TapeScope::top_ = nullptr;
constinit thread_local std::uint64_t Tape::next_id_ = 0;

// An entry that is not on top: the entries above it stay in force.
void TapeScope::unlink() {
  TapeScope* above = top_;
  while (above && above->below_ != this) above = above->below_;
  if (above) above->below_ = below_;
}

Tape::Tape(Mode mode, Tape* parent) : TapeScope(this, true), parent_(parent), mode_(mode) {
  auto& pool = State::pool();
  if (pool.empty()) pool.push_back(std::make_unique<State>());
  state_ = pool.back().release();
  pool.pop_back();
  const Tape* const enclosing = tape_at(below_);
  bool alone = true;  // tapes around this one that can still run keep what they follow
  for (const Tape* t = enclosing; t; t = tape_at(t->below_))
    alone = alone && t->mode_ == Mode::spent;
  // From here on kReach numbers must be left in the block.
  if (alone && (next_id_ == 0 || next_id_ % kBlock >= kReach))
    next_id_ = next_block.fetch_add(kBlock, std::memory_order_relaxed);
  base_ = next_id_;
  oldest_ = alone ? base_ : enclosing->oldest_;
}

Tape::~Tape() {
  clear();
  // Tapes that have run inside this one, and one that is running: they told this tape.
  for (TapeScope* s = top_; s; s = s->below_)
    if (s->records_ == this) s->records_ = around();
  State::pool().emplace_back(state_);
}

void Tape::clear() {
  State& s = *state_;
  while (Node* const node = s.last) {
    s.last = node->previous;
    node->destroy(node->fn);
  }
  s.leaves.clear();
  s.leaf_numbers.clear();
  s.slots.clear();
  s.old_slots.clear();
  s.old_slot_numbers.clear();
  s.arena.reset();
}

}  // namespace weft
