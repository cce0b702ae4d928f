// The other ways to ask for gradients, and the checks before a tape runs.
#include "weft/autograd/tape_state.h"

namespace weft {

void Tape::check_can_run(const char* caller, const TensorList& ys, const TensorList& dys) const {
  check(mode_ != Mode::spent,
        "{}: this tape is spent; open a new weft::Tape and run the forward pass again", caller);
  check(mode_ == Mode::recording, "{}: this tape is already running", caller);
  for (int i = 0; i < ys.size(); ++i) {
    const Tensor &y = ys[i], &dy = dys[i];
    check(y.defined(), "{}: loss must be a tensor, got a null handle", caller);
    check(dy.defined() || y.numel() == 1,
          "{}: loss must have 1 element or come with dy, got shape {}", caller, y.shape());
    check(!dy.defined() || (dy.shape() == y.shape() && dy.dtype() == y.dtype()),
          "{}: dy must have the loss's shape {} and dtype {}, got {} and {}", caller, y.shape(),
          y.dtype(), dy.defined() ? dy.shape() : Shape{}, dy.defined() ? dy.dtype() : y.dtype());
    // A gradient from an inner tape may be constant, as for a linear function; its own gradient is
    // then 0. Any other loss that requires no gradient is treated as a mistake.
    check(y.requires_grad() ? id_of(y) >= base_ : heard_backward_,
          "{}: the loss is not on this tape; no input of it required a gradient, or it was "
          "computed before the tape was opened",
          caller);
  }
}

TensorList Tape::gradients(const Tensor& loss, const TensorList& xs, const Tensor& dy) {
  // All checks precede the first change: a rejected call leaves the tape as it was.
  check_can_run("grad", {loss}, {dy});
  for (const Tensor& x : xs) {
    check(x.defined(),
          "grad: every x must require a gradient and be part of the recording, got a null tensor");
    check(follows(x), "grad: every x must require a gradient and be part of the recording, got {}",
          x.shape());
  }
  TensorList out = collect("grad", {loss}, {dy}, xs);
  for (int i = 0; i < xs.size(); ++i)
    if (!out[i].defined()) out[i] = zeros_like(xs[i]);
  return out;
}

// A leaf that no op of this tape has used and a tensor older than every tape of this thread have no
// slot here.
TensorList Tape::collect(const char* caller, const TensorList& ys, const TensorList& dys,
                         const TensorList& xs) {
  const auto id_or_0 = [this](const Tensor& x) { return x.defined() ? id_of(x) : 0; };
  for (const Tensor& x : xs)
    if (const std::uint64_t id = id_or_0(x)) slot(id).wanted = true;
  collects_ = true;
  run(caller, ys, dys);
  TensorList out;
  for (const Tensor& x : xs) {
    const std::uint64_t id = id_or_0(x);
    out.push_back(id ? slot(id).grad : Tensor());
  }
  clear();
  return out;
}

TensorList grad(const Tensor& y, const TensorList& xs, const Tensor& dy) {
  Tape* const tape = Tape::innermost();
  check(tape != nullptr, "grad: no tape is recording; declare weft::Tape before the forward pass");
  return tape->gradients(y, xs, dy);
}

void Tensor::backward() const { backward({}); }
void Tensor::backward(const Tensor& dy) const {
  Tape* const tape = Tape::innermost();
  check(tape != nullptr,
        "backward: no tape is recording; declare weft::Tape before the forward pass");
  tape->backward(*this, dy);
}

}  // namespace weft
