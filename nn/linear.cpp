#include "weft/nn/linear.h"

#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/linear.h"
#include "weft/core/error.h"
#include "weft/nn/fp8.h"

namespace weft::nn {

Linear::Linear(std::int64_t in, std::int64_t out, const LinearOptions& o) {
  check(in > 0 && out > 0, "linear: in and out must be at least 1, got {} and {}", in, out);
  in_fp8 = o.in_fp8;
  init = o.init.value_or(Init::kaiming_uniform(in, 0.5773502691896258));  // bound 1/sqrt(in)
  weight = make_parameter({out, in}, init, o.dtype, o.device);
  if (o.bias) bias = make_parameter({out}, Init::constant(0), o.dtype, o.device);
}

const fp8::Recipe* Linear::recipe() const { return in_fp8 ? fp8::Autocast::current() : nullptr; }

const fp8::LayerState* Linear::fp8_reader() const {
  const fp8::Recipe* const how = recipe();
  if (!how) return nullptr;
  const Shard& s = shard_of(*this);
  const bool as_given = s.fp8_product ? how->travels() : !s.enter;
  return as_given ? &fp8_state : nullptr;
}

Tensor Linear::multiply(const Tensor& x, const Tensor& own_bias) const {
  const fp8::Recipe* const how = recipe();
  return how ? fp8_linear(x, weight, own_bias, *how, &fp8_state) : linear(x, weight, own_bias);
}

Tensor Linear::operator()(const Tensor& x) const {
  if (!shard) return multiply(x, bias);
  const Shard& s = *shard;
  if (const fp8::Recipe* const how = recipe(); how && s.fp8_product)
    return s.fp8_product(x, weight, bias, *how, fp8_state);
  const Tensor own = s.leave ? Tensor() : bias;
  Tensor y = with_entered(s, x, [&](const Tensor& in) {
    return s.product ? s.product(in, weight, own) : multiply(in, own);
  });
  return s.leave ? s.finish(std::move(y), bias) : y;
}

void Linear::visit(Visitor& v) {
  v("weight", weight, init);
  v("bias", bias, Init::constant(0));
  visit_fp8(v, "fp8", fp8_state.delayed);
}

std::string Linear::describe() const {
  if (!weight.defined()) return "Linear(empty)";
  return message("Linear({} -> {}{})", weight.dim(1), weight.dim(0),
                 bias.defined() ? "" : ", no bias");
}

}  // namespace weft::nn
