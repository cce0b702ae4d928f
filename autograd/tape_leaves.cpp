// Leaves: where a complete gradient goes, which hooks are called, and which thread may add to it.
#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape_state.h"
#include "weft/core/cuda_graph.h"
#include "weft/core/dispatch.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/kernels/elementwise.h"
#include "weft/core/restorer.h"

namespace weft {
namespace {

// A GPU adds 16-bit numbers to f32 in one launch. The CPU converts first; the sum has the same
// bits.
void add_to_sum(const Tensor& sum, const Tensor& g, bool adds) {
  const NoGradGuard off;
  if (!adds) {
    sum.bump_version();
    return dispatch<cpu::copy, cuda::copy>(g, sum);
  }
  const bool mixed = sum.device().is_gpu() && sum.dtype() == DType::f32 && is_half(g.dtype());
  if (!mixed) {
    sum.add_(g.to(sum.dtype()));
    return;
  }
  sum.bump_version();
  dispatch<cpu::add_scaled, cuda::add_scaled>(g, 1.0, sum);
}

// `continued`: g is the leaf's grad(), or a sum that started from it.
void add_to_leaf(const Tensor& x, Tensor g, bool continued) {
  check(g.shape() == x.shape() && g.dtype() == x.dtype(),
        "backward: the gradient of a leaf must have its shape {} and dtype {}, got {} and {}",
        x.shape(), x.dtype(), g.shape(), g.dtype());
  const Tensor main = x.main_grad(), old = x.grad();
  if (main.defined()) {
    add_to_sum(main, g, detail::continue_main_grad(x));
  } else if (!old.defined()) {
    // grad() belongs to the user: it must not share memory with another gradient.
    x.set_grad(owned_by(g, 1) && g.is_contiguous() ? g : g.clone());
  } else if (continued) {
    if (!g.same(old)) x.set_grad(g);
  } else if (Tape::current() == nullptr) {
    old.add_(g);
  } else {
    x.set_grad(add(old, g));
  }
}

}  // namespace

bool detail::continue_main_grad(const Tensor& x) {
  if (Storage* const s = x.main_grad().storage(); s->restorer) restore_storage(s);
  const bool adds = x.main_grad_filled();
  if (cuda::Graph* const graph = cuda::Graph::capturing())
    graph->before_replay([x, adds] {
      if (!x.main_grad().defined() || x.main_grad_filled() == adds) return;
      check(adds,
            "backward: the main_grad of a parameter {} was empty when this step was captured, and "
            "now holds a gradient, which the replay would overwrite; call zero_grad() before "
            "replay(), or capture the step with the gradient in place",
            x.shape());
      x.main_grad().zero_();  // the replay adds to it
    });
  x.set_main_grad_filled(true);
  return adds;
}

void Tape::answer_uses(Slot& s, int uses) {
  Leaf& leaf = state_->leaves[static_cast<std::size_t>(s.leaf)];
  leaf.uses -= uses;
  if (leaf.uses > 0 || collects_ || !(s.grad.defined() || s.in_main)) return;
  const Tensor& x = leaf.tensor;
  leaf.reached = true;
  s.in_main = false;
  const bool continued = std::exchange(s.continued, false);
  if (s.grad.defined()) add_to_leaf(x, std::move(s.grad), continued);
  if (grad_ready_) grad_ready_(x);
}

void Tape::hand_uses_to(Tape& tape) const {
  for (const Leaf& leaf : state_->leaves) tape.use_leaf(leaf.tensor, leaf.uses);
}

std::vector<Tensor> Tape::leaves() const {
  std::vector<Tensor> out;
  for (const Leaf& leaf : state_->leaves) out.push_back(leaf.tensor);
  return out;
}

std::vector<Tensor> Tape::unused_leaves() const {
  std::vector<Tensor> out;
  for (const Leaf& leaf : state_->leaves)
    if (!leaf.reached) out.push_back(leaf.tensor);
  return out;
}

// If two threads added to one grad(), the order of the sums would depend on timing, even with
// locks. One thread may run a second tape inside a hook of the first.
void Tape::claim_leaves() {
  if (collects_) return;
  const void* const self = &top_;
  for (Leaf& leaf : state_->leaves) {
    const void* writer = nullptr;
    leaf.claimed = leaf.tensor.impl()->grad_writer.take(self, writer);
    if (leaf.claimed || writer == self) continue;
    give_leaves_back();
    check(false,
          "backward: one thread at a time may add to the grad() of a leaf, but another thread's "
          "backward() is adding to that of shape {}; take turns, or use grad()",
          leaf.tensor.shape());
  }
}

void Tape::give_leaves_back() {
  for (Leaf& leaf : state_->leaves)
    if (std::exchange(leaf.claimed, false)) leaf.tensor.impl()->grad_writer.give_back();
}

}  // namespace weft
