#include "weft/autograd/tape.h"

#include <atomic>
#include <memory>

#include "weft/autograd/tape_state.h"

namespace weft {

constinit thread_local Tape* Tape::current_ = nullptr;
constinit thread_local Tape* Tape::innermost_ = nullptr;
constinit thread_local Tape* Tape::running_ = nullptr;
constinit thread_local TapeSwitch* TapeSwitch::innermost_ = nullptr;
constinit thread_local std::uint64_t Tape::outermost_base_ = Tape::kNoBase;

namespace {

// Every thread numbers the outputs of ops in blocks of its own, so that a tensor which was recorded
// on another thread is never taken for one of this thread's. A leaf may be on the tapes of several
// threads at once: each tape numbers its leaves for itself (LeafTable).
constexpr std::uint64_t kIdBlock = 2 * Tape::kReach;
std::atomic<std::uint64_t> next_block{kIdBlock};  // 0 means: not numbered
constinit thread_local std::uint64_t next_id = 0, id_block_half = 0;

// To be called when no tape can run: from here on kReach numbers are left in the block.
void renew_id_block() {
  if (next_id < id_block_half) return;
  next_id = next_block.fetch_add(kIdBlock, std::memory_order_relaxed);
  id_block_half = next_id + Tape::kReach;
}
constinit thread_local std::int64_t pending_saved_bytes = 0;

}  // namespace

Saved save(const Tensor& t, const char* label) {
  if (t) pending_saved_bytes += t.storage()->capacity;
  return Saved(t, label);
}

/// Finished tapes leave their buffers here for the next one on this thread.
struct Tape::Pool {
  std::vector<std::unique_ptr<State>> free;

  State* take() {
    if (free.empty()) return new State;
    State* s = free.back().release();
    free.pop_back();
    return s;
  }
  static Pool& get() {
    static thread_local Pool pool;
    return pool;
  }
};

Tape::Tape()
    : state_(Pool::get().take()),
      scope_outer_(innermost_),
      outer_(current_),
      outer_base_(outermost_base_) {
  // Enclosing tapes that can still run keep their view of which tensors are their own.
  const Tape* enclosing = scope_outer_;
  while (enclosing && enclosing->mode_ == Mode::spent) enclosing = enclosing->scope_outer_;
  if (!enclosing) renew_id_block();
  base_ = next_id;
  if (!enclosing) outermost_base_ = base_;
  current_ = innermost_ = this;
}

Tape::~Tape() {
  clear();
  if (current_ == this) current_ = outer_;
  TapeSwitch::forget(*this, outer_);
  if (innermost_ == this) {
    innermost_ = scope_outer_;
    outermost_base_ = outer_base_;
  } else {
    unlink();
  }
  Pool::get().free.emplace_back(state_);
}

// A tape that ends before one that was opened inside it: the inner one takes its place.
void Tape::unlink() {
  for (Tape* t = innermost_; t; t = t->scope_outer_) {
    if (t->outer_ == this) t->outer_ = outer_;
    if (t->scope_outer_ != this) continue;
    t->scope_outer_ = scope_outer_;
    t->outer_base_ = outer_base_;
    return;
  }
}

void TapeSwitch::forget(const Tape& ended, Tape* outer) {
  for (TapeSwitch* s = innermost_; s; s = s->below_) {
    if (s->previous_ == &ended) s->previous_ = outer;
    if (s->now_ == &ended) s->now_ = outer;
  }
}

// A switch on the heap that ends before one that was made after it: the later one stays in force,
// and restores in its turn what this one would have.
void TapeSwitch::unlink() {
  for (TapeSwitch* s = innermost_; s; s = s->below_) {
    if (s->below_ != this) continue;
    s->below_ = below_;
    if (s->previous_ == now_) s->previous_ = previous_;
    return;
  }
}

void Tape::clear() {
  while (Node* n = state_->last) {
    state_->last = n->previous;
    n->destroy(n->fn);
  }
  while (PutOff* p = state_->first_put_off) {  // after an exception
    state_->first_put_off = p->next;
    p->destroy(p->fn);
  }
  state_->slots.clear();
  state_->old.clear();
  state_->leaves.clear();
  state_->leaf_table.clear();
  state_->counted.clear();
  state_->arena.reset();
  state_->heard_backward = false;
  nodes_ = 0;
}

Tape::Slot& Tape::slot(std::uint64_t id) {
  if (id < base_) return state_->old.at(id);
  const std::size_t i = id - base_;
  if (i >= state_->slots.size())
    state_->slots.resize(std::max<std::size_t>(i + 1, next_id - base_));
  return state_->slots[i];
}

void Tape::follow_outputs(const TensorRefs& outputs) {
  for (int i = 0; i < outputs.size(); ++i) {
    TensorImpl* impl = outputs[i].impl();
    impl->tape_id = next_id++;
    impl->requires_grad = true;
    impl->leaf = false;
  }
}

std::uint64_t Tape::use_leaf(const Tensor& x) {
  std::int32_t i = state_->leaf_table.find(x.impl());
  if (i < 0) {
    i = static_cast<std::int32_t>(state_->leaves.size());
    // A replay sums the gradient where the tape does that it replays for.
    std::uint64_t id = 0;
    for (const Tape* t = parent_; t && id == 0; t = t->parent_) id = t->leaf_id(x);
    if (id == 0) id = next_id++;
    state_->leaves.push_back({x, id});
    state_->leaf_table.add(x.impl(), i);
    slot(id).leaf = i;
  }
  Leaf& leaf = state_->leaves[static_cast<std::size_t>(i)];
  ++leaf.uses;
  ++leaf.total;
  if (mode_ == Mode::counting) state_->counted.push_back(i);
  return leaf.id;
}

std::uint64_t Tape::leaf_id(const Tensor& x) const {
  const std::int32_t i = state_->leaf_table.find(x.impl());
  return i < 0 ? 0 : state_->leaves[static_cast<std::size_t>(i)].id;
}

std::uint64_t Tape::id_of(const Tensor& x) const {
  const TensorImpl* const impl = x.impl();
  return impl->leaf ? leaf_id(x) : numbered(impl->tape_id) ? impl->tape_id : 0;
}

void* Tape::begin_node(const char* name, const TensorRefs& inputs, const TensorRefs& outputs,
                       std::size_t fn_bytes, Invoke invoke, Destroy destroy) {
  const std::int64_t saved_bytes = std::exchange(pending_saved_bytes, 0);
  std::uint64_t* ids = nullptr;
  Node* node = nullptr;
  if (mode_ == Mode::recording) {
    node = static_cast<Node*>(state_->arena.take(sizeof(Node)));
    ids = static_cast<std::uint64_t*>(state_->arena.take(
        static_cast<std::size_t>(inputs.size() + outputs.size()) * sizeof(std::uint64_t)));
    *node = {state_->last,
             name,
             state_->arena.take(fn_bytes),
             invoke,
             destroy,
             ids,
             ids + inputs.size(),
             inputs.size(),
             outputs.size(),
             saved_bytes,
             outputs[0].shape()};
  }
  for (int i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    std::uint64_t id = 0;
    if (x && follows(x)) id = x.impl()->leaf ? use_leaf(x) : x.impl()->tape_id;
    if (ids) *ids++ = id;
  }
  if (!node) return nullptr;
  for (int i = 0; i < outputs.size(); ++i) *ids++ = outputs[i].impl()->tape_id;
  state_->last = node;
  ++nodes_;
  return node->fn;
}

std::size_t Tape::counted_uses() const { return state_->counted.size(); }

// A use that no backward will answer would keep the leaf waiting for ever.
void Tape::forget_uses(std::size_t from) {
  for (std::size_t i = from; i < state_->counted.size(); ++i) {
    Leaf& leaf = state_->leaves[static_cast<std::size_t>(state_->counted[i])];
    --leaf.uses;
    --leaf.total;
  }
  state_->counted.resize(from);
}

std::vector<Tensor> Tape::leaves() const {
  std::vector<Tensor> out;
  for (const Leaf& leaf : state_->leaves) out.push_back(leaf.tensor);
  return out;
}

std::string Tape::print() const {
  std::vector<const Node*> order;
  for (const Node* n = state_->last; n; n = n->previous) order.push_back(n);
  std::string out;
  for (auto n = order.rbegin(); n != order.rend(); ++n)
    out += message("{} {}  saves {} bytes\n", (*n)->name, (*n)->shape, (*n)->saved_bytes);
  return out;
}

}  // namespace weft
