#include "weft/autograd/swiglu.h"

#include "weft/autograd/activate_rows.h"
#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/swiglu.h"

namespace weft {

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  detail::check_tensor("swiglu", "gate", gate);
  detail::check_tensor("swiglu", "up", up);
  if (!is_compute(gate.dtype())) throw_bad_dtype("swiglu", gate.dtype(), kFloatingNames);
  check(gate.ndim() >= 1, "swiglu: gate must have at least one axis, got a scalar");
  check(up.shape() == gate.shape(), "swiglu: up must have shape {} like gate, got {}", gate.shape(),
        up.shape());
  check(up.dtype() == gate.dtype(), "swiglu: up must have dtype {} like gate, got {}", gate.dtype(),
        up.dtype());
  check(up.device() == gate.device(), "swiglu: up must be on device {} like gate, got {}",
        gate.device(), up.device());
  const Tensor g = contiguous(gate), u = contiguous(up);
  Tensor y = empty_like(g);
  dispatch<cpu::swiglu_fwd, cuda::swiglu_fwd>(g, u, y);
  if (recording(g, u))
    Tape::record("swiglu", {&g, &u}, {&y}, [sg = save(g, "gate"), su = save(u, "up")](Backward& b) {
      b.once_differentiable();
      const Tensor &saved_gate = sg.get(), &saved_up = su.get();
      Tensor dg = empty_like(saved_gate), du = empty_like(saved_up);
      dispatch<cpu::swiglu_bwd, cuda::swiglu_bwd>(saved_gate, saved_up, contiguous(b.dy()), dg, du);
      b.add(0, std::move(dg));
      b.add(1, std::move(du));
    });
  return y;
}

Tensor swiglu(const Tensor& packed) {
  detail::check_tensor("swiglu", "x", packed);
  if (!is_compute(packed.dtype())) throw_bad_dtype("swiglu", packed.dtype(), kFloatingNames);
  check(packed.ndim() >= 1 && packed.dim(-1) % 2 == 0,
        "swiglu: x must have a last axis of even length [gate | up], got shape {}", packed.shape());
  const Tensor x = contiguous(packed);
  Shape half = x.shape();
  half[half.size() - 1] /= 2;
  Tensor y = Tensor::empty(half, x.dtype(), x.device());
  const bool recorded = recording(x);
  const RoundedRows rounded = fp8::rows_for(y, recorded);
  if (rounded.wanted())
    detail::activate_rows(x, ScaledKind::swiglu, y, rounded);
  else
    dispatch<cpu::swiglu_fwd, cuda::swiglu_fwd>(x, Tensor(), y);
  if (!recorded) return y;
  Tape::record("swiglu", {&x}, {&y}, [sx = save(x)](Backward& b) {
    b.once_differentiable();
    Tensor dx = empty_like(sx.get());
    dispatch<cpu::swiglu_bwd, cuda::swiglu_bwd>(sx.get(), Tensor(), contiguous(b.dy()), dx,
                                                Tensor());
    b.add(0, std::move(dx));
  });
  fp8::remember_rows(y, rounded);
  return y;
}

}  // namespace weft
