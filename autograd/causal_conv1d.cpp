#include "weft/autograd/causal_conv1d.h"

#include "weft/autograd/cu_seqlens.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/causal_conv1d.h"

namespace weft {
namespace {

void check_operands(const Tensor& x, const Tensor& weight) {
  detail::check_tensor("causal_conv1d", "x", x);
  detail::check_tensor("causal_conv1d", "weight", weight);
  if (!is_compute(x.dtype())) throw_bad_dtype("causal_conv1d", x.dtype(), kFloatingNames);
  check(x.ndim() == 3, "causal_conv1d: x must have shape (batch, tokens, channels), got {}",
        x.shape());
  check(weight.ndim() == 2 && weight.dim(0) == x.dim(2),
        "causal_conv1d: weight must have shape (channels {}, taps), got {}", x.dim(2),
        weight.shape());
  check(weight.dim(1) >= 1 && weight.dim(1) <= kConvTaps,
        "causal_conv1d: taps must be in [1, {}], got {}", kConvTaps, weight.dim(1));
  check(weight.dtype() == x.dtype(), "causal_conv1d: weight must have dtype {} like x, got {}",
        x.dtype(), weight.dtype());
  check(weight.device() == x.device(), "causal_conv1d: weight must be on device {} like x, got {}",
        x.device(), weight.device());
}

// Taps in the kernels' layout: channels contiguous, in the accumulation dtype.
Tensor taps_of(const Tensor& weight) {
  const NoGradGuard quiet;
  return contiguous(is_half(weight.dtype()) ? cast(weight, DType::f32).t() : weight.t());
}

void backward(Backward& b, const Tensor& x, const Tensor& weight, const Tensor& cu, bool silu) {
  b.once_differentiable();
  const Tensor taps = taps_of(weight), dx = empty_like(x);
  const Tensor dpre = Tensor::empty(x.shape(), taps.dtype(), x.device());
  Tensor dtaps, partials;
  if (b.needs(1)) {
    dtaps = empty_like(taps);
    partials = Tensor::empty({conv_chunks(x.dim(0) * x.dim(1)), taps.dim(0), taps.dim(1)},
                             taps.dtype(), x.device());
  }
  dispatch<cpu::causal_conv1d_bwd, cuda::causal_conv1d_bwd>(
      CausalConv1dBwdIn{
          .x = x, .taps = taps, .cu_seqlens = cu, .dy = contiguous(b.dy()), .silu = silu},
      CausalConv1dBwdOut{.dx = dx, .dtaps = dtaps, .dpre = dpre, .partials = partials});
  b.add(0, dx);
  if (dtaps.defined()) b.add_wide(1, contiguous(dtaps.t()), weight.dtype());
}

Tensor run(const Tensor& input, const Tensor& weight, const Tensor& cu, bool silu) {
  const Tensor x = contiguous(input), y = empty_like(x);
  dispatch<cpu::causal_conv1d_fwd, cuda::causal_conv1d_fwd>(x, taps_of(weight), cu, silu, y);
  if (recording(x, weight))
    Tape::record("causal_conv1d", {&x, &weight}, {&y},
                 [silu, sx = save(x), sw = save(weight, "weight"), sc = save(cu, "cu_seqlens")](
                     Backward& b) { backward(b, sx.get(), sw.get(), sc.get(), silu); });
  return y;
}

}  // namespace

Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const CausalConv1dOptions& o) {
  check_operands(x, weight);
  Tensor cu;
  if (o.cu_seqlens.defined()) {
    check(x.dim(0) == 1, "causal_conv1d: with cu_seqlens x must be one row, got {}", x.shape());
    check(!o.state.defined(), "causal_conv1d: cu_seqlens cannot go with a state");
    cu = detail::checked_cu_seqlens("causal_conv1d", o.cu_seqlens, "x", x, o.cu_checked);
  }
  if (!o.state.defined()) return run(x, weight, cu, o.silu);
  const Shape expected{x.dim(0), weight.dim(1) - 1, x.dim(2)};
  check(o.state.shape() == expected && o.state.dtype() == x.dtype(),
        "causal_conv1d: state must be {} {}, got {} {}", x.dtype(), expected, o.state.dtype(),
        o.state.shape());
  // The state stands for the tokens before x; their outputs are dropped.
  return run(cat({o.state, x}, 1), weight, {}, o.silu).narrow(1, expected[1], x.dim(1));
}

}  // namespace weft
