#include "weft/nn/fp8.h"

#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/nn/experts.h"
#include "weft/nn/linear.h"
#include "weft/nn/walk.h"

namespace weft::nn {
namespace {

// Calls f(name, weight, state) for every weight that is multiplied in FP8.
template <class F>
void each_layer(const Module& model, F f) {
  detail::for_each_module(model, [&](const std::string& name, Module& m) {
    if (auto* const linear = dynamic_cast<Linear*>(&m)) {
      if (linear->in_fp8 && linear->weight.defined()) f(name, linear->weight, linear->fp8_state);
    } else if (auto* const experts = dynamic_cast<Experts*>(&m)) {
      f(name, experts->up, experts->fp8_up);
      f(name, experts->down, experts->fp8_down);
    }
  });
}

void check_widths(const std::string& name, const Tensor& weight) {
  const std::int64_t outputs = weight.dim(-2), inputs = weight.dim(-1);
  check(outputs % fp8::kMultiple == 0 && inputs % fp8::kMultiple == 0,
        "fp8: {} must have widths that are multiples of {}, got {} inputs and {} outputs", name,
        fp8::kMultiple, inputs, outputs);
}

}  // namespace

void visit_fp8(Visitor& v, const char* prefix, fp8::Delayed& delayed) {
  if (!delayed.defined()) return;
  const std::string name(prefix);
  v((name + "_history").c_str(), pinned(buffer(delayed.history)));
  v((name + "_scale").c_str(), pinned(buffer(delayed.scale)));
}

void prepare_fp8(Module& model, const fp8::Recipe& recipe) {
  recipe.validate();
  each_layer(model, [&](const std::string& name, const Tensor& weight, fp8::LayerState& state) {
    check_widths(name, weight);
    state.weight.clear();
    state.delayed = {};
    if (recipe.scaling != fp8::Scaling::delayed) return;
    state.delayed.history = Tensor::zeros({recipe.history, 3}, DType::f32, weight.device());
    state.delayed.scale = Tensor::zeros({3}, DType::f32, weight.device());
  });
}

void check_fp8(const Module& model) {
  each_layer(model, [](const std::string& name, const Tensor& weight, fp8::LayerState&) {
    check_widths(name, weight);
  });
}

std::vector<Fp8Layer> fp8_layers(const Module& model) {
  std::vector<Fp8Layer> layers;
  each_layer(model, [&](const std::string&, const Tensor& weight, fp8::LayerState& state) {
    layers.push_back({weight, &state});
  });
  return layers;
}

std::vector<Tensor> fp8_weights(const Module& model) {
  std::vector<Tensor> weights;
  for (const Fp8Layer& layer : fp8_layers(model)) weights.push_back(layer.weight);
  return weights;
}

bool is_fp8_state(const std::string& name) {
  return name.ends_with("fp8_history") || name.ends_with("fp8_scale");
}

Fp8Step::Fp8Step(Module& model, const fp8::Recipe& recipe) : recipe_(recipe) {
  each_layer(model, [&](const std::string&, const Tensor&, fp8::LayerState& state) {
    if (state.delayed.defined()) layers_.push_back(state.delayed);
  });
}

void Fp8Step::finish(const fp8::ReduceAmax& reduce) {
  if (layers_.empty()) return;
  const NoGradGuard quiet;
  if (reduce) {
    const auto count = static_cast<std::int64_t>(layers_.size());
    const Tensor all = Tensor::empty({count, 3}, DType::f32, layers_[0].history.device());
    const auto each = [&](auto f) {
      for (std::int64_t i = 0; i < count; ++i)
        f(all.select(0, i), layers_[static_cast<std::size_t>(i)].history.select(0, 0));
    };
    each([](const Tensor& place, const Tensor& own) { place.copy_(own); });
    reduce(all);
    each([](const Tensor& place, const Tensor& own) { own.copy_(place); });
  }
  for (const fp8::Delayed& layer : layers_) fp8::roll(layer, recipe_);
}

}  // namespace weft::nn
