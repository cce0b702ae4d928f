#include "weft/nn/mlp.h"

#include "weft/autograd/discard.h"
#include "weft/autograd/fp8_rows.h"

namespace weft::nn {

Mlp::Mlp(std::int64_t dim, std::int64_t hidden, const MlpOptions& o)
    : options(o),
      up(dim, is_gated(o.activation) ? 2 * hidden : hidden, {.bias = o.bias, .init = o.init}),
      down(hidden, dim, {.bias = o.bias, .init = o.proj_init}) {
  if (is_gated(o.activation)) up.parts = {{"gate", hidden}, {"up", hidden}};
}

Tensor Mlp::operator()(const Tensor& x) const {
  const Shard* const in = up.shard.get();
  const Shard* const out = down.shard.get();
  if ((in && (in->product || in->leave)) || (out && (out->product || out->enter)) ||
      up.is_adapted() || down.is_adapted() || fp8::Autocast::current())
    return composed(x);
  const bool finish = out && out->leave;
  const Tensor bias = finish ? Tensor() : down.bias;
  Tensor y = with_entered(shard_of(up), x, [&](const Tensor& entered) {
    return mlp(entered, up.weight, up.bias, down.weight, bias,
               {.activation = options.activation, .recompute = options.recompute});
  });
  return finish ? out->finish(std::move(y), down.bias) : y;
}

Tensor Mlp::composed(const Tensor& x) const {
  return use_discarded(
      options.recompute, {up(x)},
      [kind = options.activation, next = down.fp8_reader()](const TensorList& in) {
        const fp8::ProducesFor scope(next);
        return activation(in[0], kind);
      },
      down);
}

void Mlp::visit(Visitor& v) {
  v(is_gated(options.activation) ? "gate_up" : "up", up);
  v("down", down);
}

}  // namespace weft::nn
