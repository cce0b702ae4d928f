#include "weft/nn/mlp.h"

namespace weft::nn {

Mlp::Mlp(std::int64_t dim, std::int64_t hidden, const MlpOptions& o)
    : options(o),
      up(dim, o.activation == Activation::swiglu ? 2 * hidden : hidden,
         {.bias = o.bias, .init = o.init}),
      down(hidden, dim, {.bias = o.bias, .init = o.proj_init}) {}

Tensor Mlp::operator()(const Tensor& x) const {
  return mlp(x, up.weight, up.bias, down.weight, down.bias,
             {.activation = options.activation, .recompute = options.recompute});
}

void Mlp::visit(Visitor& v) {
  v(options.activation == Activation::swiglu ? "gate_up" : "up", up);
  v("down", down);
}

Mlp Mlp::like() const { return Mlp(down.weight.dim(0), down.weight.dim(1), options); }

}  // namespace weft::nn
