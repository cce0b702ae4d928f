#include "weft/autograd/activation.h"

#include <algorithm>

#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/scaled_activation.h"
#include "weft/autograd/swiglu.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft {
namespace {

// Of GELU and SwiGLU there are ops with kernels of their own.
bool is_gelu(Activation kind) {
  return kind == Activation::gelu_tanh || kind == Activation::gelu_erf;
}

// The formula of a row; that of 16 bits in f32, so that it rounds once.
Tensor wide_formula(const ActivationRow& row, const Tensor& hidden) {
  const Tensor h = is_half(hidden.dtype()) ? cast(hidden, DType::f32) : hidden;
  if (!row.gated) return row.f(h);
  const std::int64_t width = h.dim(-1) / 2;
  return mul(row.f(narrow(h, -1, 0, width)), narrow(h, -1, width, width));
}

void check_hidden(const char* op, const Tensor& hidden, const ActivationRow& row) {
  detail::check_tensor(op, "hidden", hidden);
  if (!is_compute(hidden.dtype())) throw_bad_dtype(op, hidden.dtype(), kFloatingNames);
  check(!row.gated || (hidden.ndim() >= 1 && hidden.dim(-1) % 2 == 0),
        "{}: hidden must have a last axis of even length [gate | up] for {}, got shape {}", op,
        row.word, hidden.shape());
}

// fn(inputs), a formula of public ops, as one op that saves the inputs alone. Backward runs the
// formula again under a tape, whose gradients an outer tape records.
template <class F>
Tensor one_op(const char* name, const TensorList& inputs, F fn) {
  Tensor y;
  {
    const NoGradGuard quiet;
    const fp8::ProducesFor nothing(nullptr);  // the ops inside do not write what a product reads
    y = fn(inputs);
  }
  if (!Tape::current() || std::none_of(inputs.begin(), inputs.end(), Tape::follows)) return y;
  SavedList saved;
  for (const Tensor& x : inputs) saved.add(x, "an input");
  Tape::record(name, inputs, {&y}, [fn, saved](Backward& b) {
    TensorList in = saved.get(), wanted;
    for (int i = 0; i < in.size(); ++i) {
      if (!Tape::current()) in[i] = in[i].detach().set_requires_grad(b.needs(i));
      if (b.needs(i)) wanted.push_back(in[i]);
    }
    const fp8::ProducesFor nothing(nullptr);
    Tape again;
    const TensorList found = again.gradients(fn(in), wanted, b.dy());
    for (int i = 0, next = 0; i < in.size(); ++i)
      if (b.needs(i)) b.add(i, found[next++]);
  });
  return y;
}

}  // namespace

const ActivationRow& row_of(Activation kind) {
  for (const ActivationRow& row : kActivations)
    if (row.kind == kind) return row;
  throw Error(
      message("activation: value {} must have a row in kActivations", static_cast<int>(kind)));
}

Tensor ActivationRow::composed(const Tensor& hidden) const {
  return cast(wide_formula(*this, hidden), hidden.dtype());
}

Tensor activation(const Tensor& hidden, Activation kind) {
  const ActivationRow& row = row_of(kind);
  check_hidden("activation", hidden, row);
  if (kind == Activation::swiglu) return swiglu(hidden);
  if (is_gelu(kind)) return row.f(hidden);
  return one_op("activation", {hidden},
                [&row](const TensorList& in) { return row.composed(in[0]); });
}

Tensor scaled_activation(const Tensor& hidden, const Tensor& scale, Activation kind) {
  const char* const op = "scaled_activation";
  const ActivationRow& row = row_of(kind);
  check_hidden(op, hidden, row);
  if (kind == Activation::swiglu) return scaled_swiglu(hidden, scale);
  if (is_gelu(kind))
    return scaled_gelu(hidden, scale, kind == Activation::gelu_tanh ? Gelu::tanh : Gelu::erf);
  detail::check_tensor(op, "scale", scale);
  check(hidden.ndim() == 2, "{}: hidden must have shape (rows, width), got {}", op, hidden.shape());
  const DType wide = hidden.dtype() == DType::f64 ? DType::f64 : DType::f32;
  check(scale.shape() == Shape{hidden.dim(0)}, "{}: scale must have shape {}, got {}", op,
        Shape{hidden.dim(0)}, scale.shape());
  check(scale.dtype() == wide && scale.device() == hidden.device(),
        "{}: scale must be {} on {}, got {} on {}", op, wide, hidden.device(), scale.dtype(),
        scale.device());
  return one_op(op, {hidden, scale}, [&row](const TensorList& in) {
    return cast(mul(wide_formula(row, in[0]), unsqueeze(in[1], 1)), in[0].dtype());
  });
}

}  // namespace weft
