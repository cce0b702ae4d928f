#include "weft/autograd/layer_norm.h"

#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/norm_checks.h"
#include "weft/autograd/parameter_gradient.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/kernels/norm.h"

namespace weft {
namespace {

// Inputs are x, residual, weight, bias; the last three may be null.
void backward(Backward& b, const Tensor& x, const Tensor& weight, bool has_bias, const Tensor& mean,
              const Tensor& rstd, const Tensor& dsum) {
  b.once_differentiable();
  const auto give = [&](const Tensor& dx) {
    b.add(0, dx);
    b.add(1, dx);
  };
  if (!b.dy().defined()) return give(dsum);  // the loss depends on the sum only
  const bool need_weight = weight.defined() && b.needs(2), need_bias = has_bias && b.needs(3);
  const std::int64_t C = x.dim(-1), wanted = need_weight + need_bias;
  Tensor dx = empty_like(x), partials;
  detail::ParameterGradient dweight, dbias;
  constexpr auto kAdds = detail::ParameterGradient::Kernel::can_add;
  if (need_weight) dweight = {b, 2, {C}, x, kAdds};
  if (need_bias) dbias = {b, 3, {C}, x, kAdds, dweight.to};
  if (wanted)
    partials = Tensor::empty({wanted, norm_chunks(mean.numel(), x.device().is_gpu()), C},
                             mean.dtype(), x.device());
  dispatch<cpu::layer_norm_bwd, cuda::layer_norm_bwd>(
      NormBwdIn{.x = x,
                .dy = contiguous(b.dy()),
                .weight = weight,
                .mean = mean,
                .rstd = rstd,
                .dsum = dsum.defined() ? contiguous(dsum) : dsum},
      NormBwdOut{.dx = dx,
                 .dweight = dweight.to,
                 .dbias = dbias.to,
                 .partials = partials,
                 .adds_weight = dweight.adds,
                 .adds_bias = dbias.adds});
  give(dx);
  dweight.give(b);
  dbias.give(b);
}

LayerNormResidual run(const char* op, const Tensor& input, const Tensor& stream,
                      const Tensor& weight, const Tensor& bias, double eps) {
  detail::check_norm_input(op, input);
  const Shape row{input.dim(-1)};
  detail::check_norm_operand(op, "residual", stream, input.shape(), "like x", input);
  detail::check_norm_operand(op, "weight", weight, row, "last axis of x", input);
  detail::check_norm_operand(op, "bias", bias, row, "last axis of x", input);

  const Tensor x = contiguous(input), residual = stream.defined() ? contiguous(stream) : stream;
  const Tensor w = weight.defined() ? contiguous(weight) : weight,
               shift = bias.defined() ? contiguous(bias) : bias;
  Tensor y = empty_like(x), sum = residual.defined() ? empty_like(x) : Tensor();
  const Tensor mean = detail::row_statistic(x), rstd = empty_like(mean);
  const bool recorded = recording(x, residual, w, shift);
  const RoundedRows rounded = fp8::rows_for(y, recorded);
  dispatch<cpu::layer_norm_fwd, cuda::layer_norm_fwd>(
      NormFwdIn{.x = x, .residual = residual, .weight = w, .bias = shift, .eps = eps},
      NormFwdOut{.sum = sum, .y = y, .mean = mean, .rstd = rstd, .rounded = rounded});
  if (recorded) {
    const bool has_bias = shift.defined();
    if (residual.defined())
      Tape::record(op, {&x, &residual, &w, &shift}, {&y, &sum},
                   [ss = save(sum, "sum"), sw = save(w, "weight"), sm = save(mean, "mean"),
                    sr = save(rstd, "rstd"), has_bias](Backward& b) {
                     backward(b, ss.get(), sw.get(), has_bias, sm.get(), sr.get(), b.dy(1));
                   });
    else
      Tape::record(op, {&x, &residual, &w, &shift}, {&y},
                   [sx = save(x), sw = save(w, "weight"), sm = save(mean, "mean"),
                    sr = save(rstd, "rstd"), has_bias](Backward& b) {
                     backward(b, sx.get(), sw.get(), has_bias, sm.get(), sr.get(), Tensor());
                   });
    fp8::remember_rows(y, rounded);
  }
  return {y, sum};
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return run("layer_norm", x, {}, weight, bias, eps).y;
}

LayerNormResidual layer_norm_residual(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                      const Tensor& bias, double eps) {
  check(residual.defined(), "layer_norm_residual: residual must be a tensor, got null");
  return run("layer_norm_residual", x, residual, weight, bias, eps);
}

}  // namespace weft
