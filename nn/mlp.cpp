#include "weft/nn/mlp.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/swiglu.h"

namespace weft::nn {
namespace {

Tensor activate(Activation kind, const Tensor& h) {
  switch (kind) {
    case Activation::gelu_tanh:
      return gelu(h, Gelu::tanh);
    case Activation::gelu_erf:
      return gelu(h, Gelu::erf);
    case Activation::swiglu:
      break;
  }
  return swiglu(h);
}

}  // namespace

Mlp::Mlp(std::int64_t dim, std::int64_t hidden, const MlpOptions& o)
    : options(o),
      up(dim, o.activation == Activation::swiglu ? 2 * hidden : hidden,
         {.bias = o.bias, .init = o.init}),
      down(hidden, dim, {.bias = o.bias, .init = o.proj_init}) {}

Tensor Mlp::operator()(const Tensor& x) const {
  const Tensor h = up(x);
  if (!options.recompute) return down(activate(options.activation, h));
  return recompute([this](const Tensor& in) { return down(activate(options.activation, in)); }, h);
}

void Mlp::visit(Visitor& v) {
  v(options.activation == Activation::swiglu ? "gate_up" : "up", up);
  v("down", down);
}

Mlp Mlp::like() const { return Mlp(down.weight.dim(0), down.weight.dim(1), options); }

}  // namespace weft::nn
