#include "weft/autograd/scaled_activation.h"

#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/scaled_activation.h"

namespace weft {
namespace {

Tensor scaled(const char* op, const Tensor& given, const Tensor& given_scale, ScaledKind kind) {
  detail::check_tensor(op, "h", given);
  detail::check_tensor(op, "scale", given_scale);
  if (!is_compute(given.dtype())) throw_bad_dtype(op, given.dtype(), kFloatingNames);
  check(given.ndim() == 2, "{}: h must have shape (rows, width), got {}", op, given.shape());
  const bool packed = kind == ScaledKind::swiglu;
  check(!packed || given.dim(1) % 2 == 0, "{}: h must have rows [gate | up] of even length, got {}",
        op, given.dim(1));
  const DType wide = given.dtype() == DType::f64 ? DType::f64 : DType::f32;
  check(given_scale.shape() == Shape{given.dim(0)}, "{}: scale must have shape {}, got {}", op,
        Shape{given.dim(0)}, given_scale.shape());
  check(given_scale.dtype() == wide && given_scale.device() == given.device(),
        "{}: scale must be {} on {}, got {} on {}", op, wide, given.device(), given_scale.dtype(),
        given_scale.device());
  const Tensor h = contiguous(given), scale = contiguous(given_scale);
  Tensor y = Tensor::empty({h.dim(0), packed ? h.dim(1) / 2 : h.dim(1)}, h.dtype(), h.device());
  const bool recorded = recording(h, scale);
  const RoundedRows rounded = fp8::rows_for(y, recorded);
  dispatch<cpu::scaled_activation_fwd, cuda::scaled_activation_fwd>(h, scale, kind, y, rounded);
  if (!recorded) return y;
  Tape::record(op, {&h, &scale}, {&y},
               [sh = save(h, "h"), ss = save(scale, "scale"), kind](Backward& b) {
                 b.once_differentiable();
                 Tensor dh = empty_like(sh.get()), dscale = empty_like(ss.get());
                 dispatch<cpu::scaled_activation_bwd, cuda::scaled_activation_bwd>(
                     sh.get(), ss.get(), contiguous(b.dy()), kind, dh, dscale);
                 b.add(0, std::move(dh));
                 b.add(1, std::move(dscale));
               });
  fp8::remember_rows(y, rounded);
  return y;
}

}  // namespace

Tensor scaled_swiglu(const Tensor& h, const Tensor& scale) {
  return scaled("scaled_swiglu", h, scale, ScaledKind::swiglu);
}

Tensor scaled_gelu(const Tensor& h, const Tensor& scale, Gelu kind) {
  return scaled("scaled_gelu", h, scale,
                kind == Gelu::tanh ? ScaledKind::gelu_tanh : ScaledKind::gelu_erf);
}

}  // namespace weft
