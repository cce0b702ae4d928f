// The stack of tapes and guards, and tensor ids: how opening or destroying a tape affects the other
// tapes of its thread.
#include "weft/autograd/tape_scope.h"

#include <atomic>

#include "weft/autograd/tape_state.h"

namespace weft {
namespace {

// Each thread takes ids from its own blocks, so a tensor recorded by another thread is never
// mistaken for one of this thread's. 0: no id.
constexpr std::uint64_t kBlock = 2 * Tape::kReach;
std::atomic<std::uint64_t> next_block{kBlock};

}  // namespace

constinit thread_local TapeScope* TapeScope::top_ = nullptr;
constinit thread_local std::uint64_t Tape::next_id_ = 0;

// Removes an entry below the top; the entries above it stay in force.
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
  bool alone = true;  // tapes around this one that can still run keep following their tensors
  for (const Tape* t = enclosing; t; t = tape_at(t->below_))
    alone = alone && t->mode_ == Mode::spent;
  // A tape must start with at least kReach ids left in the block.
  if (alone && (next_id_ == 0 || next_id_ % kBlock >= kReach))
    next_id_ = next_block.fetch_add(kBlock, std::memory_order_relaxed);
  base_ = next_id_;
  oldest_ = alone ? base_ : enclosing->oldest_;
}

Tape::~Tape() {
  clear();
  // Ops of inner tapes that run or have run were recorded here; now the tape around records them.
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
