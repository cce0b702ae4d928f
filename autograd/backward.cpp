// Saved tensors, and where gradients are accumulated.
#include "weft/autograd/backward.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/save_watch.h"
#include "weft/autograd/tape_state.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/kernels/elementwise.h"
#include "weft/core/restorer.h"

namespace weft {

constinit thread_local detail::SaveLog detail::save_log;

Saved save(const Tensor& t, const char* label) {
  if (t.defined()) {
    detail::save_log.bytes += t.storage()->capacity;
    if (detail::save_log.watches > 0) SaveWatch::saw(t);
  }
  return Saved(t, label);
}

void Saved::bring_back() const { restore_storage(tensor_.storage()); }

void Saved::throw_changed() const {
  const char* const op = detail::save_log.running_op;
  detail::raise(Fault::user, "{}: saved {} was changed in place (version {}, saved at {})",
                {op ? op : "backward", label_, tensor_.version(), version_});
}

void Backward::add(int i, Tensor dx) {
  if (!needs(i)) return;
  Tape& tape = tape_->holder(inputs_[i]);
  tape.accumulate(tape.slot(inputs_[i]), op_, std::move(dx));
}

GradientSum Backward::accumulator(int i, const Shape& shape, DType dtype, bool can_be_f32) {
  if (!needs(i)) return {};
  Tape& tape = tape_->holder(inputs_[i]);
  Tape::Slot& s = tape.slot(inputs_[i]);
  const Tensor* const leaf = tape.leaf_to_fill(s);
  GradientSum sum{leaf ? leaf->main_grad() : Tensor(), true};
  if (sum.to.defined() && sum.to.shape() == shape && sum.to.is_contiguous() &&
      (sum.to.dtype() == dtype || (can_be_f32 && is_half(dtype) && sum.to.dtype() == DType::f32))) {
    s.in_main = true;
    sum.adds = detail::continue_main_grad(*leaf);
  } else if (s.wide && !Tape::current() &&
             ((can_be_f32 && is_half(dtype)) || dtype == DType::f32)) {
    sum.adds = s.grad.defined();
    if (!sum.adds) s.grad = Tensor::empty(shape, DType::f32, s.device);
    sum.to = s.grad;
  } else if (tape.can_add_in_place(s) && s.grad.shape() == shape && s.grad.dtype() == dtype) {
    sum.to = s.grad;
  } else {
    return {};
  }
  sum.to.bump_version();
  return sum;
}

DType Backward::sum_dtype(int i, DType dtype) const {
  if (!needs(i) || !is_half(dtype)) return dtype;
  Tape& tape = tape_->holder(inputs_[i]);
  const Tape::Slot& s = tape.slot(inputs_[i]);
  if (s.wide) return DType::f32;
  const Tensor* const leaf = tape.leaf_to_fill(s);
  const Tensor main = leaf ? leaf->main_grad() : Tensor();
  return main.defined() && main.is_contiguous() && main.dtype() == DType::f32 ? DType::f32 : dtype;
}

void Backward::add_wide(int i, const Tensor& dx, DType dtype) {
  if (dx.dtype() == dtype) return add(i, dx);
  const GradientSum sum = accumulator(i, dx.shape(), dx.dtype());
  if (!sum.to.defined()) return add(i, cast(dx, dtype));
  if (sum.adds) {
    detail::count_update(sum.to);
    dispatch<cpu::add_scaled, cuda::add_scaled>(dx, 1.0, sum.to);
  } else {
    dispatch<cpu::copy, cuda::copy>(dx, sum.to);
  }
}

void Backward::sum_in_f32(const Tensor& y) {
  for (Tape* tape = Tape::current(); tape; tape = tape->outer()) {
    if (tape->mode_ != Tape::Mode::recording) continue;  // a replay records it again
    Tape::Slot& s = tape->slot(y.impl()->tape_id);
    s.wide = true;
    s.device = y.device();
  }
}

void Backward::once_differentiable() const {
  check(Tape::current() == nullptr,
        "{}: its backward is a fused kernel and can be differentiated only once; build it from "
        "primitive ops, or open a NoGradGuard around the backward pass",
        op_);
}

// The leaf whose grad() or main_grad() can take the sum directly; null if there is none.
const Tensor* Tape::leaf_to_fill(const Slot& s) const {
  const bool fills = current() == nullptr && s.leaf >= 0 && !collects_;
  return fills ? &state_->leaves[static_cast<std::size_t>(s.leaf)].tensor : nullptr;
}

// True if the buffer has no other handle and no outer tape needs its history. If the leaf has a
// grad() from earlier passes, accumulation continues in it, so this pass needs no new buffer.
bool Tape::can_add_in_place(Slot& s) const {
  if (current() != nullptr) return false;
  if (const Tensor* const x = s.grad.defined() ? nullptr : leaf_to_fill(s)) {
    Tensor old = x->grad();
    if (old.defined() && !x->main_grad().defined() && owned_by(old, 2) &&
        old.shape() == x->shape() && old.dtype() == x->dtype() && !old.requires_grad()) {
      s.grad = std::move(old);
      s.continued = true;
    }
  }
  // While accumulation continues in grad(), the leaf holds a handle too.
  return s.grad.defined() && s.grad.is_contiguous() && owned_by(s.grad, s.continued ? 2 : 1);
}

void Tape::accumulate(Slot& s, const char* op, Tensor dx) {
  if (s.wide && is_half(dx.dtype())) dx = cast(dx, DType::f32);
  const bool in_place = can_add_in_place(s);
  if (!s.grad.defined()) {
    s.grad = std::move(dx);
    return;
  }
  check(s.grad.shape() == dx.shape() && s.grad.dtype() == dx.dtype(),
        "{}: gradient must have shape {} and dtype {}, got {} and {}", op, s.grad.shape(),
        s.grad.dtype(), dx.shape(), dx.dtype());
  if (in_place)
    s.grad.add_(dx);
  else
    s.grad = weft::add(s.grad, dx);
}

}  // namespace weft
