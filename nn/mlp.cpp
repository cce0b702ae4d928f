#include "weft/nn/mlp.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/swiglu.h"

namespace weft::nn {

Mlp::Mlp(std::int64_t dim, std::int64_t hidden, const MlpOptions& o)
    : options(o),
      up(dim, o.activation == Activation::swiglu ? 2 * hidden : hidden,
         {.bias = o.bias, .init = o.init}),
      down(hidden, dim, {.bias = o.bias, .init = o.proj_init}) {}

Tensor Mlp::operator()(const Tensor& x) const {
  const Shard* const in = up.shard.get();
  const Shard* const out = down.shard.get();
  if ((in && (in->product || in->leave)) || (out && (out->product || out->enter)) ||
      fp8::Autocast::current())
    return composed(x);
  const bool finish = out && out->leave;
  Tensor y = mlp(in && in->enter ? in->enter(x) : x, up.weight, up.bias, down.weight,
                 finish ? Tensor() : down.bias,
                 {.activation = options.activation, .recompute = options.recompute});
  return finish ? out->finish(std::move(y), down.bias) : y;
}

Tensor Mlp::composed(const Tensor& x) const {
  const auto rest = [this](const Tensor& hidden) {
    if (options.activation == Activation::swiglu) return down(swiglu(hidden));
    return down(gelu(hidden, options.activation == Activation::gelu_tanh ? Gelu::tanh : Gelu::erf));
  };
  // Communication inside of a region would run twice.
  const Shard& s = shard_of(down);
  const bool again = options.recompute && !s.product && !s.leave;
  return again ? recompute(rest, up(x)) : rest(up(x));
}

void Mlp::visit(Visitor& v) {
  v(options.activation == Activation::swiglu ? "gate_up" : "up", up);
  v("down", down);
}

}  // namespace weft::nn
