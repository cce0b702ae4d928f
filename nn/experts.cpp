#include "weft/nn/experts.h"

#include "weft/autograd/discard.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/grouped_linear.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/nn/fp8.h"

namespace weft::nn {

Experts::Experts(std::int64_t experts, std::int64_t dim, std::int64_t hidden,
                 const ExpertsOptions& o)
    : options(o) {
  check(experts > 0 && dim > 0 && hidden > 0,
        "experts: experts, dim and hidden must be at least 1, got {}, {} and {}", experts, dim,
        hidden);
  const std::int64_t wide = is_gated(o.activation) ? 2 * hidden : hidden;
  up = make_parameter({experts, wide, dim}, o.init);
  down = make_parameter({experts, dim, hidden}, o.proj_init);
  if (!o.bias) return;
  up_bias = make_parameter({experts, wide}, Init::constant(0));
  down_bias = make_parameter({experts, dim}, Init::constant(0));
}

Tensor Experts::multiply(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const Tensor& rows, const Tensor& bias_scale, const fp8::LayerState& state,
                         const DelayedGradients& later) {
  const fp8::Recipe* const recipe = fp8::Autocast::current();
  if (!recipe) return grouped_linear(x, weight, bias, rows, bias_scale, later);
  const Tensor y = fp8_grouped_linear(x, weight, rows, *recipe, &state, later);
  if (!bias.defined()) return y;
  // The bias as a weight with one input, the row's scale.
  const Tensor scale =
      bias_scale.defined() ? bias_scale : Tensor::ones({x.dim(0)}, x.dtype(), x.device());
  return add(y, grouped_linear(unsqueeze(scale, 1), unsqueeze(bias, 2), {}, rows));
}

Tensor Experts::operator()(const Tensor& x, const Tensor& probs, const Tensor& rows,
                           const DelayedGradients& later) const {
  const Tensor h = multiply(x, up, up_bias, rows, {}, fp8_up, later);
  const Tensor scale = down_bias.defined() ? cast(probs, h.dtype()) : Tensor();
  Tensor bias = down_bias;
  if (const int ranks = shard_of(*this).bias_ranks; bias.defined() && ranks > 1)
    bias = add(bias, mul(bias.detach(), 1.0 / ranks - 1));
  return use_discarded(
      options.recompute, {h, probs},
      [kind = options.activation, next = &fp8_down](const TensorList& in) {
        const fp8::ProducesFor scope(next);
        return scaled_activation(in[0], in[1], kind);
      },
      [&](const Tensor& act) { return multiply(act, down, bias, rows, scale, fp8_down, later); });
}

void Experts::visit(Visitor& v) {
  const bool two = is_gated(options.activation);
  v(two ? "gate_up" : "up", up, options.init);
  v(two ? "gate_up_bias" : "up_bias", up_bias, Init::constant(0));
  v("down", down, options.proj_init);
  v("down_bias", down_bias, Init::constant(0));
  visit_fp8(v, two ? "gate_up_fp8" : "up_fp8", fp8_up.delayed);
  visit_fp8(v, "down_fp8", fp8_down.delayed);
}

std::string Experts::describe() const {
  return message("Experts({} x {} -> {} -> {})", up.dim(0), up.dim(2), down.dim(2), down.dim(1));
}

SharedExpert::SharedExpert(std::int64_t dim, std::int64_t hidden, bool gated, const MlpOptions& o)
    : mlp(dim, hidden, o) {
  if (gated) gate.emplace(dim, 1, LinearOptions{.bias = false, .init = o.init, .in_fp8 = false});
}

Tensor SharedExpert::operator()(const Tensor& x) const {
  const Tensor y = mlp(x);
  return gate ? mul(y, sigmoid((*gate)(x))) : y;
}

void SharedExpert::visit(Visitor& v) {
  v("mlp", mlp);
  v("gate", gate);
}

}  // namespace weft::nn
