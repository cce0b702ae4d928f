#include "weft/autograd/rms_norm.h"

#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/norm_checks.h"
#include "weft/autograd/parameter_gradient.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/kernels/norm.h"

namespace weft {
namespace {

// Inputs are x, residual, weight; the last two may be null.
void backward(Backward& b, const Tensor& x, const Tensor& weight, const Tensor& rstd,
              const Tensor& dsum, bool zero_centered) {
  b.once_differentiable();
  const auto give = [&](const Tensor& dx) {
    b.add(0, dx);
    b.add(1, dx);
  };
  if (!b.dy().defined()) return give(dsum);  // the loss depends on the sum only
  const std::int64_t C = x.dim(-1);
  Tensor dx = empty_like(x), partials;
  detail::ParameterGradient dweight;
  if (weight.defined() && b.needs(2)) {
    dweight = {b, 2, {C}, x, detail::ParameterGradient::Kernel::can_add};
    partials = Tensor::empty({1, norm_chunks(rstd.numel(), x.device().is_gpu()), C}, rstd.dtype(),
                             x.device());
  }
  const Tensor none;
  dispatch<cpu::rms_norm_bwd, cuda::rms_norm_bwd>(
      NormBwdIn{.x = x,
                .dy = contiguous(b.dy()),
                .weight = weight,
                .mean = none,
                .rstd = rstd,
                .dsum = dsum.defined() ? contiguous(dsum) : dsum,
                .zero_centered = zero_centered},
      NormBwdOut{.dx = dx,
                 .dweight = dweight.to,
                 .dbias = none,
                 .partials = partials,
                 .adds_weight = dweight.adds});
  give(dx);
  dweight.give(b);
}

RmsNormResidual run(const char* op, const Tensor& input, const Tensor& stream, const Tensor& weight,
                    double eps, bool zero_centered) {
  detail::check_norm_input(op, input);
  detail::check_norm_operand(op, "residual", stream, input.shape(), "like x", input);
  detail::check_norm_operand(op, "weight", weight, {input.dim(-1)}, "last axis of x", input);

  const Tensor x = contiguous(input), residual = stream.defined() ? contiguous(stream) : stream;
  const Tensor w = weight.defined() ? contiguous(weight) : weight;
  Tensor y = empty_like(x), sum = residual.defined() ? empty_like(x) : Tensor();
  const Tensor rstd = detail::row_statistic(x);
  const Tensor none;
  const bool recorded = recording(x, residual, w);
  const RoundedRows rounded = fp8::rows_for(y, recorded);
  dispatch<cpu::rms_norm_fwd, cuda::rms_norm_fwd>(
      NormFwdIn{.x = x,
                .residual = residual,
                .weight = w,
                .bias = none,
                .eps = eps,
                .zero_centered = zero_centered},
      NormFwdOut{.sum = sum, .y = y, .mean = none, .rstd = rstd, .rounded = rounded});
  if (recorded) {
    if (residual.defined())
      Tape::record(
          op, {&x, &residual, &w}, {&y, &sum},
          [ss = save(sum, "sum"), sw = save(w, "weight"), sr = save(rstd, "rstd"), zero_centered](
              Backward& b) { backward(b, ss.get(), sw.get(), sr.get(), b.dy(1), zero_centered); });
    else
      Tape::record(
          op, {&x, &residual, &w}, {&y},
          [sx = save(x), sw = save(w, "weight"), sr = save(rstd, "rstd"), zero_centered](
              Backward& b) { backward(b, sx.get(), sw.get(), sr.get(), Tensor(), zero_centered); });
    fp8::remember_rows(y, rounded);
  }
  return {y, sum};
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, bool zero_centered) {
  return run("rms_norm", x, {}, weight, eps, zero_centered).y;
}

RmsNormResidual rms_norm_residual(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                  double eps, bool zero_centered) {
  check(residual.defined(), "rms_norm_residual: residual must be a tensor, got null");
  return run("rms_norm_residual", x, residual, weight, eps, zero_centered);
}

}  // namespace weft
