#include "weft/autograd/tape.h"

#include <atomic>
#include <memory>

#include "weft/autograd/elementwise.h"

namespace weft {

constinit thread_local Tape* Tape::current_ = nullptr;
constinit thread_local Tape* Tape::innermost_ = nullptr;
constinit thread_local std::uint64_t Tape::outermost_base_ = Tape::kNoBase;

namespace {

// Every thread numbers tensors in blocks of its own, so that a tensor which was recorded on another
// thread is never taken for one of this thread's.
constexpr std::uint64_t kIdBlock = 2 * Tape::kReach;
std::atomic<std::uint64_t> next_block{kIdBlock};  // 0 means: not numbered
constinit thread_local std::uint64_t next_id = 0, id_block_half = 0;

// To be called when no tape can run: from here on kReach numbers are left in the block.
void renew_id_block() {
  if (next_id < id_block_half) return;
  next_id = next_block.fetch_add(kIdBlock, std::memory_order_relaxed);
  id_block_half = next_id + Tape::kReach;
}
constinit thread_local const char* running_op = nullptr;
constinit thread_local std::int64_t pending_saved_bytes = 0;

/// Memory for nodes: bump allocation in chunks that are kept from tape to tape.
class Arena {
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

bool uniquely_owned(const Tensor& t) {
  return t.impl()->refs.load(std::memory_order_acquire) == 1 &&
         t.storage()->refs.load(std::memory_order_acquire) == 1;
}

}  // namespace

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

struct Tape::Slot {
  Tensor grad;
  std::int32_t leaf = -1;
  bool wanted = false;  ///< gradients() returns it: keep it after its node has run
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
  int uses = 0;   ///< not yet answered by backward
  int total = 0;  ///< recorded
  bool reached = false;
};

struct Tape::State {
  Arena arena;
  Node* last = nullptr;
  std::vector<Slot> slots;  ///< by id - base
  OldSlots old;             ///< ids below base: tensors of an outer tape
  std::vector<Leaf> leaves;
  std::vector<std::int32_t> counted;  ///< the leaf of each use by an unrecorded first pass
};

Saved save(const Tensor& t, const char* label) {
  if (t) pending_saved_bytes += t.storage()->capacity;
  return Saved(t, label);
}

void Saved::throw_changed() const {
  detail::raise(Fault::user, "{}: saved {} was changed in place (version {}, saved at {})",
                {running_op ? running_op : "backward", label_, tensor_.version(), version_});
}

void Backward::add(int i, Tensor dx) {
  if (!needs(i)) return;
  tape_->accumulate(tape_->slot(slots_[i]), op_, std::move(dx));
}

void Backward::once_differentiable() const {
  check(Tape::current() == nullptr,
        "{}: its backward is a fused kernel and can be differentiated only once; build it from "
        "primitive ops, or open a NoGradGuard around the backward pass",
        op_);
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
  innermost_ = scope_outer_;
  outermost_base_ = outer_base_;
  Pool::get().free.emplace_back(state_);
}

void Tape::clear() {
  while (Node* n = state_->last) {
    state_->last = n->previous;
    n->destroy(n->fn);
  }
  state_->slots.clear();
  state_->old.clear();
  state_->leaves.clear();
  state_->counted.clear();
  state_->arena.reset();
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
    if (x && follows(x)) {
      TensorImpl* impl = x.impl();
      if (!numbered(impl->tape_id)) impl->tape_id = next_id++;
      id = impl->tape_id;
      if (impl->leaf) {
        Slot& s = slot(id);
        if (s.leaf < 0) {
          s.leaf = static_cast<std::int32_t>(state_->leaves.size());
          state_->leaves.push_back({x});
        }
        ++state_->leaves[s.leaf].uses;
        ++state_->leaves[s.leaf].total;
        if (mode_ == Mode::counting) state_->counted.push_back(s.leaf);
      }
    }
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

void Tape::accumulate(Slot& s, const char* op, Tensor dx) {
  if (!s.grad) {
    s.grad = std::move(dx);
    return;
  }
  check(s.grad.shape() == dx.shape() && s.grad.dtype() == dx.dtype(),
        "{}: gradient must have shape {} and dtype {}, got {} and {}", op, s.grad.shape(),
        s.grad.dtype(), dx.shape(), dx.dtype());
  // In place only when nobody else can see the buffer, and no outer tape needs its history.
  if (current_ == nullptr && uniquely_owned(s.grad) && s.grad.is_contiguous())
    s.grad.add_(dx);
  else
    s.grad = add(s.grad, dx);
}

void Tape::leaf_used(Slot& s, int uses) {
  Leaf& leaf = state_->leaves[s.leaf];
  leaf.uses -= uses;
  if (leaf.uses > 0 || collect_only_) return;
  if (parent_) {
    // A leaf older than the replay belongs to the tape that asked for it; inputs are collected.
    const std::uint64_t id = leaf.tensor.impl()->tape_id;
    if (id >= base_) return;
    Slot& theirs = parent_->slot(id);
    if (s.grad) parent_->accumulate(theirs, "recompute", std::move(s.grad));
    s.grad = {};
    return parent_->leaf_used(theirs, leaf.total);
  }
  if (s.grad) finish_leaf(leaf, s);
}

void Tape::finish_leaf(Leaf& leaf, Slot& s) {
  const Tensor& x = leaf.tensor;
  leaf.reached = true;
  Tensor g = std::move(s.grad);
  s.grad = {};
  check(g.shape() == x.shape() && g.dtype() == x.dtype(),
        "backward: the gradient of a leaf must have its shape {} and dtype {}, got {} and {}",
        x.shape(), x.dtype(), g.shape(), g.dtype());
  if (const Tensor main = x.main_grad()) {
    NoGradGuard off;
    main.add_(g.to(main.dtype()));
  } else if (const Tensor old = x.grad()) {
    if (current_ == nullptr)
      old.add_(g);
    else
      x.set_grad(add(old, g));
  } else {
    // grad() belongs to the user: it must not share memory with another gradient.
    x.set_grad(uniquely_owned(g) && g.is_contiguous() ? g : g.clone());
  }
  g = {};
  if (grad_ready_) grad_ready_(x);
}

void Tape::run_node(Node& node) {
  TensorList dy;
  bool reached = false;
  for (int i = 0; i < node.output_count; ++i) {
    Slot& s = slot(node.outputs[i]);
    Tensor g = s.wanted ? s.grad : std::move(s.grad);
    reached = reached || g;
    dy.push_back(std::move(g));
  }
  if (reached) {
    check(!dy[0] || dy[0].shape() == node.shape, "{}: gradient must have shape {}, got {}",
          node.name, node.shape, dy[0] ? dy[0].shape() : Shape{});
    Backward b;
    b.tape_ = this;
    b.op_ = node.name;
    b.slots_ = node.inputs;
    b.dy_ = dy.begin();
    running_op = node.name;
    node.invoke(node.fn, b);
  }
}

void Tape::check_runnable(const char* caller) const {
  check(mode_ != Mode::spent,
        "{}: this tape is spent; open a new weft::Tape and run the forward pass again", caller);
  check(mode_ == Mode::recording, "{}: this tape is already running", caller);
}

void Tape::check_loss(const char* caller, const Tensor& y, const Tensor& dy) const {
  check(static_cast<bool>(y), "{}: loss must be a tensor, got a null handle", caller);
  check(dy || y.numel() == 1, "{}: loss must have 1 element or come with dy, got shape {}", caller,
        y.shape());
  check(!dy || (dy.shape() == y.shape() && dy.dtype() == y.dtype()),
        "{}: dy must have the loss's shape {} and dtype {}, got {} and {}", caller, y.shape(),
        y.dtype(), dy ? dy.shape() : Shape{}, dy ? dy.dtype() : y.dtype());
  check(y.requires_grad() && numbered(y.impl()->tape_id) && y.impl()->tape_id >= base_,
        "{}: the loss is not on this tape; no input of it required a gradient, or it was computed "
        "before the tape was opened",
        caller);
}

void Tape::run(const char* caller, const TensorList& ys, const TensorList& dys) {
  check_runnable(caller);
  for (int i = 0; i < ys.size(); ++i) check_loss(caller, ys[i], dys[i]);
  CategoryScope category(Category::gradient);
  struct Restore {
    Tape* tape;
    Tape* previous;
    const char* op;
    ~Restore() {
      current_ = previous == tape ? tape->outer_ : previous;
      running_op = op;
      tape->mode_ = Mode::spent;
    }
  } restore{this, std::exchange(current_, outer_), running_op};
  for (int i = 0; i < ys.size(); ++i) {
    const Tensor& y = ys[i];
    accumulate(slot(y.impl()->tape_id), caller,
               dys[i] ? dys[i] : Tensor::ones(y.shape(), y.dtype(), y.device()));
  }
  mode_ = Mode::running;
  while (Node* node = state_->last) {
    state_->last = node->previous;
    --nodes_;
    {
      struct Destroyed {  // also when the lambda throws
        Node* node;
        ~Destroyed() { node->destroy(node->fn); }
      } destroyed{node};
      run_node(*node);
    }
    for (int i = 0; i < node->input_count; ++i) {
      if (node->inputs[i] == 0) continue;
      Slot& s = slot(node->inputs[i]);
      if (s.leaf >= 0) leaf_used(s, 1);
    }
  }
}

void Tape::backward(const Tensor& loss, const Tensor& dy) {
  run("backward", {loss}, {dy});
  if (backward_end_) {
    std::vector<Tensor> unused;
    for (const Leaf& leaf : state_->leaves)
      if (!leaf.reached) unused.push_back(leaf.tensor);
    backward_end_(unused);
  }
  clear();
}

TensorList Tape::gradients(const Tensor& loss, const TensorList& xs, const Tensor& dy) {
  // Every check comes before the first change: a refused call leaves the tape as it was.
  check_runnable("grad");
  check_loss("grad", loss, dy);
  for (const Tensor& x : xs) {
    check(static_cast<bool>(x),
          "grad: every x must require a gradient and be part of the recording, got a null tensor");
    check(follows(x), "grad: every x must require a gradient and be part of the recording, got {}",
          x.shape());
  }
  for (const Tensor& x : xs) want_gradient(x);
  collect_only_ = true;
  run("grad", {loss}, {dy});
  TensorList out;
  for (const Tensor& x : xs) out.push_back(take_gradient(x));
  clear();
  return out;
}

// A tensor older than every tape of this thread was used by none of them.
void Tape::want_gradient(const Tensor& x) {
  if (numbered(x.impl()->tape_id)) slot(x.impl()->tape_id).wanted = true;
}

Tensor Tape::take_gradient(const Tensor& x) {
  return numbered(x.impl()->tape_id) ? slot(x.impl()->tape_id).grad : Tensor();
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

void backward_from(const Tensor& loss, const Tensor& dy) {
  check(Tape::innermost_ != nullptr,
        "backward: no tape is recording; declare weft::Tape before the forward pass");
  Tape::innermost_->backward(loss, dy);
}

TensorList grad(const Tensor& y, const TensorList& xs, const Tensor& dy) {
  check(Tape::innermost_ != nullptr,
        "grad: no tape is recording; declare weft::Tape before the forward pass");
  return Tape::innermost_->gradients(y, xs, dy);
}

void Tensor::backward() const { backward_from(*this, {}); }
void Tensor::backward(const Tensor& dy) const { backward_from(*this, dy); }

}  // namespace weft
