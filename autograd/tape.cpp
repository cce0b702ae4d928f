// The core of the tape: ops are recorded in order and run in reverse.
#include "weft/autograd/tape.h"

#include <algorithm>

#include "weft/autograd/tape_state.h"
#include "weft/core/allocator.h"
#include "weft/core/kernel_timer.h"

namespace weft {

void Tape::number(const TensorRefs& outputs) {
  for (int i = 0; i < outputs.size(); ++i) {
    TensorImpl* const impl = outputs[i].impl();
    impl->tape_id = next_id_++;
    impl->requires_grad = true;
    impl->leaf = false;
  }
}

void* Tape::add_node(const char* name, const TensorRefs& inputs, const TensorRefs& outputs,
                     std::size_t fn_bytes, Invoke invoke, Destroy destroy) {
  const std::int64_t saved_bytes = detail::save_log.bytes;
  if (!outer()) detail::save_log.bytes = 0;  // the last tape that records this op
  if (detail::profiling()) [[unlikely]]
    detail::end_profiled_op(name);
  if (mode_ == Mode::counting) {
    for (int i = 0; i < inputs.size(); ++i)
      if (inputs[i].requires_grad() && inputs[i].impl()->leaf) use_leaf(inputs[i]);
    return nullptr;
  }
  State& s = *state_;
  const auto count = static_cast<std::size_t>(inputs.size() + outputs.size());
  void* const place = s.arena.take(sizeof(Node));
  auto* id = static_cast<std::uint64_t*>(s.arena.take(count * sizeof(std::uint64_t)));
  Shape* others = nullptr;
  if (const int more = outputs.size() - 1; more > 0) {
    others = static_cast<Shape*>(s.arena.take(static_cast<std::size_t>(more) * sizeof(Shape)));
    for (int i = 0; i < more; ++i) new (others + i) Shape(outputs[i + 1].shape());
  }
  Node* const node = new (place) Node{s.last,
                                      name,
                                      s.arena.take(fn_bytes),
                                      invoke,
                                      destroy,
                                      id,
                                      id + inputs.size(),
                                      inputs.size(),
                                      outputs.size(),
                                      detail::profile_scope(),
                                      saved_bytes,
                                      outputs.size() ? outputs[0].shape() : Shape{},
                                      others};
  for (int i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    *id++ = !x.requires_grad() ? 0 : x.impl()->leaf ? use_leaf(x) : id_of(x);
  }
  for (int i = 0; i < outputs.size(); ++i) *id++ = outputs[i].impl()->tape_id;
  s.last = node;
  return node->fn;
}

// Counts uses of a leaf; returns its id.
std::uint64_t Tape::use_leaf(const Tensor& x, int uses) {
  // In a replay the region's first pass has already counted the uses.
  if (const std::uint64_t id = parent_ ? parent_->leaf_id(x) : 0) return id;
  State& s = *state_;
  const auto i = static_cast<std::size_t>(s.leaf_numbers.add(Leaf::key(x)));
  if (i == s.leaves.size()) s.leaves.push_back({x, next_id_++});
  s.leaves[i].uses += uses;
  return s.leaves[i].id;
}

// 0 if no op of this tape has used it.
std::uint64_t Tape::leaf_id(const Tensor& x) const {
  const std::int32_t i = state_->leaf_numbers.find(Leaf::key(x));
  if (i >= 0) return state_->leaves[static_cast<std::size_t>(i)].id;
  return parent_ ? parent_->leaf_id(x) : 0;
}

// The id of any tensor; 0 if this thread does not follow it.
std::uint64_t Tape::id_of(const Tensor& x) const {
  const TensorImpl* const impl = x.impl();
  return impl->leaf ? leaf_id(x) : numbered(impl->tape_id) ? impl->tape_id : 0;
}

/// While a tape runs, the tapes around it record its ops; afterwards it is spent.
struct Tape::Run : TapeScope {
  // Under a NoGradGuard no tape records them.
  explicit Run(Tape& runs) : TapeScope(current() ? runs.outer() : nullptr), tape(runs) {
    tape.records_ = tape.around();
    tape.mode_ = Mode::running;
    for (Tape* t = current(); t; t = t->around()) t->heard_backward_ = true;
  }
  ~Run() {
    tape.mode_ = Mode::spent;
    tape.give_leaves_back();
  }
  Tape& tape;
};

void Tape::run(const char* caller, const TensorList& ys, const TensorList& dys) {
  State& s = *state_;
  claim_leaves();
  const CategoryScope category(Category::gradient);
  const Run run(*this);
  for (std::size_t i = 0; i < s.leaves.size(); ++i)
    slot(s.leaves[i].id).leaf = static_cast<std::int32_t>(i);
  // The grad() of a leaf, given as dy, would change while gradients are added to it.
  const auto is_gradient = [&s](const Tensor& dy) {
    const auto shares = [&dy](const Tensor& g) {
      return g.defined() && g.storage() == dy.storage();
    };
    return std::any_of(s.leaves.begin(), s.leaves.end(), [&](const Leaf& leaf) {
      return shares(leaf.tensor.grad()) || shares(leaf.tensor.main_grad());
    });
  };
  for (int i = 0; i < ys.size(); ++i) {
    if (!ys[i].requires_grad()) continue;
    Tensor dy = dys[i];
    if (!dy.defined())
      dy = Tensor::ones(ys[i].shape(), ys[i].dtype(), ys[i].device());
    else if (is_gradient(dy))
      dy = dy.clone();
    accumulate(slot(id_of(ys[i])), caller, std::move(dy));
  }
  while (Node* const node = s.last) {
    s.last = node->previous;
    run_node(*node);
    for (int i = 0; i < node->input_count; ++i) {
      if (node->inputs[i] == 0) continue;
      Tape& tape = holder(node->inputs[i]);
      if (Slot& x = tape.slot(node->inputs[i]); x.leaf >= 0) tape.answer_uses(x, 1);
    }
  }
  // Recomputed regions that the loss does not reach never ran again: settle their counted uses.
  for (std::size_t i = 0; i < s.leaves.size(); ++i)
    if (const Leaf& leaf = s.leaves[i]; leaf.uses > 0) answer_uses(slot(leaf.id), leaf.uses);
}

void Tape::run_node(Node& node) {
  struct Destroyed {  // also when the lambda throws
    Node& node;
    ~Destroyed() { node.destroy(node.fn); }
  } const destroyed{node};
  TensorList dy;
  bool reached = node.output_count == 0;
  for (int i = 0; i < node.output_count; ++i) {
    Slot& y = slot(node.outputs[i]);
    dy.push_back(y.wanted ? y.grad : std::move(y.grad));
    if (!dy[i].defined()) continue;
    reached = true;
    const Shape& shape = i == 0 ? node.shape : node.others[i - 1];
    check(dy[i].shape() == shape, "{}: gradient must have shape {}, got {}", node.name, shape,
          dy[i].shape());
  }
  if (!reached) return;
  Backward b(this, node.name, node.inputs, dy.begin());
  if (!detail::profiling()) [[likely]]
    return node.invoke(node.fn, b);
  struct Outside {  // also when the lambda throws
    std::int32_t scope = detail::profile_scope();
    ~Outside() { detail::set_profile_scope(scope); }
  } const outside;
  detail::set_profile_scope(node.profile_scope);
  node.invoke(node.fn, b);
  detail::end_profiled_op(node.name);
}

void Tape::backward(const Tensor& loss, const Tensor& dy) {
  check_can_run("backward", {loss}, {dy});
  check(!state_->leaves.empty(),
        "backward: no op on this tape has used a leaf, so that every gradient would be lost; run "
        "the outer tape, on which they are, or use grad()");
  run("backward", {loss}, {dy});
  if (backward_end_) backward_end_(unused_leaves());
  clear();
}

}  // namespace weft
