// Running a tape backwards.
#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape_state.h"

namespace weft {
namespace {

bool owned_by(const Tensor& t, int handles) {
  return t.impl()->refs.load() == handles && t.storage()->refs.load() == 1;
}
bool uniquely_owned(const Tensor& t) { return owned_by(t, 1); }

// A gradient that an inner tape has found may depend on nothing, as that of a linear function does:
// its own gradient is 0. Any other such loss is taken for a mistake.
template <class State>
bool is_constant(const State& state, const Tensor& y) {
  return !y.requires_grad() && state.heard_backward;
}

}  // namespace

constinit thread_local const char* RunningOp::current = nullptr;

void Saved::throw_changed() const {
  detail::raise(
      Fault::user, "{}: saved {} was changed in place (version {}, saved at {})",
      {RunningOp::current ? RunningOp::current : "backward", label_, tensor_.version(), version_});
}

void Backward::add(int i, Tensor dx) {
  if (!needs(i)) return;
  Tape& tape = tape_->summing(slots_[i]);
  tape.accumulate(tape.slot(slots_[i]), op_, std::move(dx));
}

Tensor Backward::accumulator(int i, const Shape& shape, DType dtype, bool can_add_to_f32) {
  if (!needs(i)) return {};
  Tape& tape = tape_->summing(slots_[i]);
  Tape::Slot& s = tape.slot(slots_[i]);
  if (const Tensor main = tape.main_grad_of(s);
      main && main.shape() == shape && main.is_contiguous() &&
      (main.dtype() == dtype ||
       (can_add_to_f32 && dtype == DType::bf16 && main.dtype() == DType::f32))) {
    s.in_main = true;
    main.bump_version();
    return main;
  }
  if (!tape.can_add_in_place(s)) return {};
  if (s.grad.shape() != shape || s.grad.dtype() != dtype) return {};
  s.grad.bump_version();
  return s.grad;
}

void Backward::once_differentiable() const {
  check(Tape::current() == nullptr,
        "{}: its backward is a fused kernel and can be differentiated only once; build it from "
        "primitive ops, or open a NoGradGuard around the backward pass",
        op_);
}

// The tape that sums a gradient, after what was put off before it. A replayed region's inputs are
// its own; what is older belongs to the tape that asked for the replay, and is summed there as if
// the region had not been: with the same bits, and without a second buffer.
Tape& Tape::summing(std::uint64_t id) {
  Tape* tape = this;
  tape->run_put_off_before(id);
  while (tape->parent_ && id < tape->base_) {
    tape = tape->parent_;
    tape->run_put_off_before(id);
  }
  return *tape;
}

// Where the gradient of a leaf ends up at once, when it has a main_grad.
Tensor Tape::main_grad_of(const Slot& s) const {
  const bool own = current_ == nullptr && s.leaf >= 0 && !collect_only_ && !parent_;
  return own ? state_->leaves[s.leaf].tensor.main_grad() : Tensor();
}

// In place only when nobody else can see the buffer, and no outer tape needs its history. A leaf's
// sum goes on in its grad() from earlier passes, so that the new part needs no buffer of its own.
bool Tape::can_add_in_place(Slot& s) {
  if (current_ != nullptr) return false;
  if (!s.grad && s.leaf >= 0 && !collect_only_ && !parent_) {
    const Tensor& x = state_->leaves[s.leaf].tensor;
    const Tensor old = x.grad();
    if (old && !x.main_grad() && owned_by(old, 2) && old.shape() == x.shape() &&
        old.dtype() == x.dtype() && !old.requires_grad()) {
      s.grad = old;
      s.continued = true;
    }
  }
  // The leaf holds a handle too while its grad() is continued.
  return s.grad && s.grad.is_contiguous() && owned_by(s.grad, s.continued ? 2 : 1);
}

void Tape::accumulate(Slot& s, const char* op, Tensor dx) {
  const bool in_place = can_add_in_place(s);
  if (!s.grad) {
    s.grad = std::move(dx);
    return;
  }
  check(s.grad.shape() == dx.shape() && s.grad.dtype() == dx.dtype(),
        "{}: gradient must have shape {} and dtype {}, got {} and {}", op, s.grad.shape(),
        s.grad.dtype(), dx.shape(), dx.dtype());
  if (in_place)
    s.grad.add_(dx);
  else
    s.grad = add(s.grad, dx);
}

void Tape::leaf_used(Slot& s, int uses) {
  Leaf& leaf = state_->leaves[s.leaf];
  leaf.uses -= uses;
  if (leaf.uses > 0 || s.put_off > 0 || collect_only_) return;
  if (parent_) {
    if (leaf.id < base_) parent_->leaf_used(parent_->slot(leaf.id), leaf.total);
    return;
  }
  if (s.grad || s.in_main) finish_leaf(leaf, s);
}

void Tape::finish_leaf(Leaf& leaf, Slot& s) {
  const Tensor& x = leaf.tensor;
  leaf.reached = true;
  Tensor g = std::move(s.grad);
  s.grad = {};
  const bool continued = std::exchange(s.continued, false);
  if (std::exchange(s.in_main, false)) {
    x.set_main_grad_filled(true);
    if (!g) {
      if (grad_ready_) grad_ready_(x);
      return;
    }
  }
  check(g.shape() == x.shape() && g.dtype() == x.dtype(),
        "backward: the gradient of a leaf must have its shape {} and dtype {}, got {} and {}",
        x.shape(), x.dtype(), g.shape(), g.dtype());
  if (const Tensor main = x.main_grad()) {
    NoGradGuard off;
    main.add_(g.to(main.dtype()));
    x.set_main_grad_filled(true);
  } else if (const Tensor old = x.grad(); old && continued) {
    if (!g.same(old)) x.set_grad(g);
  } else if (old) {
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
    const RunningOp op(node.name);
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
  check(is_constant(*state_, y) || (y.requires_grad() && id_of(y) >= base_),
        "{}: the loss is not on this tape; no input of it required a gradient, or it was computed "
        "before the tape was opened",
        caller);
}

void Tape::run(const char* caller, const TensorList& ys, const TensorList& dys) {
  check_runnable(caller);
  for (int i = 0; i < ys.size(); ++i) check_loss(caller, ys[i], dys[i]);
  check(collect_only_ || parent_ || !state_->leaves.empty(),
        "{}: no op on this tape has used a leaf, so that every gradient would be lost; run the "
        "outer tape, on which they are, or use grad()",
        caller);
  claim_leaves();
  CategoryScope category(Category::gradient);
  struct Restore {
    Tape* tape;
    Tape* running;
    ~Restore() {
      running_ = running;
      tape->mode_ = Mode::spent;
      tape->give_leaves_back();
    }
  } restore{this, std::exchange(running_, this)};
  if (current_ == this) current_ = outer_;
  // Under a NoGradGuard the outer tape hears nothing of this pass either.
  const TapeSwitch heard_by(current_ ? outer_ : nullptr);
  for (int i = 0; i < ys.size(); ++i) {
    const Tensor& y = ys[i];
    if (is_constant(*state_, y)) continue;
    accumulate(slot(id_of(y)), caller,
               dys[i] ? dys[i] : Tensor::ones(y.shape(), y.dtype(), y.device()));
  }
  for (Tape* outer = current_; outer; outer = outer->outer_) outer->state_->heard_backward = true;
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
  run_put_off();
  // A region that the loss does not reach is not run again, and its uses are still to come.
  for (std::size_t i = 0; i < state_->leaves.size(); ++i) {
    const Leaf& leaf = state_->leaves[i];
    if (leaf.uses > 0) leaf_used(slot(leaf.id), leaf.uses);
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
  for (const Tensor& x : xs) {
    Tensor dx = take_gradient(x);
    out.push_back(dx ? std::move(dx) : zeros_like(x));
  }
  clear();
  return out;
}

// A leaf that no op of this tape has used, or a tensor older than every tape of this thread, has no
// place here.
void Tape::want_gradient(const Tensor& x) {
  if (const std::uint64_t id = id_of(x)) slot(id).wanted = true;
}

Tensor Tape::take_gradient(const Tensor& x) {
  const std::uint64_t id = id_of(x);
  return id ? slot(id).grad : Tensor();
}

// Sums of two threads in one grad() would come in an order that timing decides, even where every
// addition is guarded. A thread may run a second tape inside a hook of the first.
void Tape::claim_leaves() {
  if (collect_only_ || parent_) return;
  const void* const self = &current_;
  for (Leaf& leaf : state_->leaves) {
    const void* writer = nullptr;
    leaf.claimed = leaf.tensor.impl()->grad_writer.take(self, writer);
    if (leaf.claimed || writer == self) continue;
    const Shape shape = leaf.tensor.shape();
    give_leaves_back();
    check(false,
          "backward: one thread at a time may add to the grad() of a leaf, but another thread's "
          "backward() is adding to that of shape {}; take turns, or use grad()",
          shape);
  }
}

void Tape::give_leaves_back() {
  for (Leaf& leaf : state_->leaves)
    if (std::exchange(leaf.claimed, false)) leaf.tensor.impl()->grad_writer.give_back();
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
