#include "weft/nn/linear.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/nn/fp8.h"

namespace weft::nn {
namespace {

// `of(adapter)` of each part that has one, and `none(part)` of the others, along an axis.
template <class Of, class None>
Tensor by_part(const Linear& l, int axis, const Of& of, const None& none) {
  if (l.parts.empty()) return of(l.lora[0]);
  TensorList all;
  auto next = l.lora.begin();
  for (const LinearPart& p : l.parts)
    all.push_back(next != l.lora.end() && next->part == p.name ? of(*next++) : none(p));
  return cat(all, axis);
}

}  // namespace

Linear::Linear(std::int64_t in, std::int64_t out, const LinearOptions& o) {
  check(in > 0 && out > 0, "linear: in and out must be at least 1, got {} and {}", in, out);
  in_fp8 = o.in_fp8;
  init = o.init.value_or(Init::kaiming_uniform(in, 0.5773502691896258));  // bound 1/sqrt(in)
  weight = make_parameter({out, in}, init, o.dtype, o.device);
  if (o.bias) bias = make_parameter({out}, Init::constant(0), o.dtype, o.device);
}

const fp8::Recipe* Linear::recipe() const {
  return in_fp8 && lora.empty() ? fp8::Autocast::current() : nullptr;
}

const fp8::LayerState* Linear::fp8_reader() const {
  const fp8::Recipe* const how = recipe();
  if (!how) return nullptr;
  const Shard& s = shard_of(*this);
  const bool as_given = s.fp8_product ? how->travels() : !s.enter;
  return as_given ? &fp8_state : nullptr;
}

Tensor Linear::multiply(const Tensor& x, const Tensor& own_bias) const {
  const fp8::Recipe* const how = recipe();
  const Shard& s = shard_of(*this);
  const Tensor y = how         ? fp8_linear(x, weight, own_bias, *how, &fp8_state)
                   : s.product ? s.product(x, weight, own_bias)
                               : linear(x, weight, own_bias);
  return is_adapted() ? add(y, adaptation(x)) : y;
}

Tensor Linear::adaptation(const Tensor& x) const {
  return by_part(
      *this, x.ndim() - 1, [&](const Lora& adapter) { return adapter(x); },
      [&](const LinearPart& p) {
        Shape shape = x.shape();
        shape[shape.size() - 1] = p.rows;
        return Tensor::zeros(shape, x.dtype(), x.device());
      });
}

Tensor Linear::adapted_weight() const {
  if (!is_adapted()) return weight;
  return add(weight,
             by_part(
                 *this, 0, [](const Lora& adapter) { return adapter.product(); },
                 [&](const LinearPart& p) {
                   return Tensor::zeros({p.rows, weight.dim(1)}, weight.dtype(), weight.device());
                 }));
}

Tensor Linear::operator()(const Tensor& x) const {
  if (!shard) return multiply(x, bias);
  const Shard& s = *shard;
  if (const fp8::Recipe* const how = recipe(); how && s.fp8_product)
    return s.fp8_product(x, weight, bias, *how, fp8_state);
  const Tensor own = s.leave ? Tensor() : bias;
  Tensor y = with_entered(s, x, [&](const Tensor& in) { return multiply(in, own); });
  return s.leave ? s.finish(std::move(y), bias) : y;
}

void Linear::visit(Visitor& v) {
  v("weight", weight, init);
  v("bias", bias, Init::constant(0));
  visit_fp8(v, "fp8", fp8_state.delayed);
  for (Lora& adapter : lora) v(Lora::name_of(adapter.part).c_str(), adapter);
}

std::string Linear::describe() const {
  if (!weight.defined()) return "Linear(empty)";
  return message("Linear({} -> {}{})", weight.dim(1), weight.dim(0),
                 bias.defined() ? "" : ", no bias");
}

}  // namespace weft::nn
