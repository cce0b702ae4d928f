#include "weft/nn/recurrent.h"

#include <cmath>

#include "weft/autograd/linear.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::nn {
namespace {

Init init_of(std::int64_t hidden) {
  return Init::uniform(1 / std::sqrt(static_cast<double>(hidden)));
}

}  // namespace

Recurrent::Recurrent(const char* name, std::int64_t gates, std::int64_t in, std::int64_t units,
                     const RecurrentOptions& o)
    : options(o), input(in), hidden(units) {
  check(in > 0 && units > 0, "{}: input and hidden must be at least 1, got {} and {}", name, in,
        units);
  check(o.layers > 0, "{}: layers must be at least 1, got {}", name, o.layers);
  const Init init = init_of(units);
  for (std::int64_t i = 0; i < o.layers; ++i) {
    RecurrentLayer layer;
    layer.weight_ih = make_parameter({gates * units, i == 0 ? in : units}, init);
    layer.weight_hh = make_parameter({gates * units, units}, init);
    if (o.bias) {
      layer.bias_ih = make_parameter({gates * units}, init);
      layer.bias_hh = make_parameter({gates * units}, init);
    }
    layers.push_back(std::move(layer));
  }
}

void Recurrent::visit(Visitor& v) {
  const Init init = init_of(hidden);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string end = "_l" + std::to_string(i);
    v(("weight_ih" + end).c_str(), layers[i].weight_ih, init);
    v(("weight_hh" + end).c_str(), layers[i].weight_hh, init);
    v(("bias_ih" + end).c_str(), layers[i].bias_ih, init);
    v(("bias_hh" + end).c_str(), layers[i].bias_hh, init);
  }
}

double Recurrent::multiply_adds() const {
  double sum = 0;
  for (const RecurrentLayer& l : layers)
    sum += static_cast<double>(l.weight_ih.numel() + l.weight_hh.numel());
  return sum;
}

std::string Recurrent::describe_as(const char* name) const {
  return message("{}({} -> {}{}{})", name, input, hidden,
                 options.layers == 1 ? "" : message(", {} layers", options.layers),
                 options.bias ? "" : ", no bias");
}

void Recurrent::check_call(const char* op, const Tensor& x, const Tensor& state) const {
  weft::detail::check_tensor(op, "x", x);
  check(x.ndim() == 3 && x.dim(2) == input, "{}: x must have shape (batch, tokens, {}), got {}", op,
        input, x.shape());
  if (state.defined())
    check(state.ndim() == 3 && state.dim(0) == options.layers,
          "{}: state must have shape (layers {}, sequences, {}), got {}", op, options.layers,
          hidden, state.shape());
}

Tensor Recurrent::state_of(const Tensor& state, std::size_t i) const {
  return state.defined() ? state.select(0, static_cast<std::int64_t>(i)) : state;
}

Gru::Gru(std::int64_t in, std::int64_t units, const RecurrentOptions& o)
    : Recurrent("gru", 3, in, units, o) {}

GruOutput Gru::operator()(const Tensor& x, const Tensor& state, const Packing& packing) const {
  check_call("gru", x, state);
  Tensor y = x;
  TensorList last;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const RecurrentLayer& l = layers[i];
    GruOutput out = gru(linear(y, l.weight_ih, l.bias_ih), l.weight_hh, l.bias_hh,
                        {.state = state_of(state, i), .cu_seqlens = packing.cu_seqlens});
    y = std::move(out.y);
    last.push_back(std::move(out.state));
  }
  return {y, stack(last, 0)};
}

Lstm::Lstm(std::int64_t in, std::int64_t units, const RecurrentOptions& o)
    : Recurrent("lstm", 4, in, units, o) {}

LstmOutput Lstm::operator()(const Tensor& x, const LstmState& state, const Packing& packing) const {
  check_call("lstm", x, state.h);
  check_call("lstm", x, state.c);
  Tensor y = x;
  TensorList h, c;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const RecurrentLayer& l = layers[i];
    LstmOutput out = lstm(
        linear(y, l.weight_ih, l.bias_ih), l.weight_hh, l.bias_hh,
        {.state = {state_of(state.h, i), state_of(state.c, i)}, .cu_seqlens = packing.cu_seqlens});
    y = std::move(out.y);
    h.push_back(std::move(out.state.h));
    c.push_back(std::move(out.state.c));
  }
  return {y, {stack(h, 0), stack(c, 0)}};
}

}  // namespace weft::nn
