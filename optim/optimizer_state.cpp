// Saves and loads the state of an optimizer.
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/remainder.h"
#include "weft/optim/optimizer.h"

namespace weft::optim {
namespace {

// A state in its compute dtype: f32, or f64 for an f64 parameter.
Tensor unscaled(const Tensor& stored, const Tensor& scale, DType dtype) {
  Tensor out = Tensor::empty(stored.shape(), dtype, stored.device());
  out.copy_(stored);
  if (scale.defined() && !scale.is_meta()) out.mul_(scale.item());
  return out;
}

constexpr double kLargestF16State = 32752;  // half of the f16 range leaves room for growth

double absmax(const Tensor& t) {
  std::vector<double> values(static_cast<std::size_t>(t.numel()));
  t.copy_to(values);
  double m = 0;
  for (const double v : values) m = std::max(m, std::abs(v));
  return m;
}

// Writes values to a state, with a new scale where it has one.
void store(const Tensor& values, const Tensor& stored, const Tensor& scale) {
  if (!scale.defined() || scale.is_meta()) {
    stored.copy_(values);
    return;
  }
  const double s = static_cast<float>(absmax(values) / kLargestF16State);
  scale.fill_(s);
  Tensor shrunk = Tensor::empty(values.shape(), DType::f64, values.device());
  shrunk.copy_(values);
  stored.copy_(shrunk.mul_(s == 0 ? 0 : 1 / s));
}

}  // namespace

StateDict Optimizer::state_dict() const {
  StateDict out;
  out.emplace("step", Tensor::full({1}, static_cast<double>(steps_), DType::i64));
  for (const State& s : states_)
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const DType dtype = s.tensors[i].dtype() == DType::f64 ? DType::f64 : DType::f32;
      out.emplace(parameters_[i].name + '.' + s.name, unscaled(s.tensors[i], s.scales[i], dtype));
    }
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (has_master(i))
      out.emplace(parameters_[i].name + ".master", unscaled(value(i), Tensor(), DType::f32));
  return out;
}

void Optimizer::load_state_dict(const StateDict& state) {
  const auto step = state.find("step");
  check(step != state.end(), "load_state_dict: the optimizer state must have \"step\", got none");
  check(step->second.numel() == 1, "load_state_dict: step must have 1 element, got shape {}",
        step->second.shape());
  std::set<std::string> known{"step"};
  const auto expect = [&](const NamedTensor& p, const std::string& name) {
    const auto it = state.find(name);
    check(it != state.end(), "load_state_dict: {} is missing from the optimizer state", name);
    check(it->second.shape() == p.tensor.shape(), "load_state_dict: {} must have shape {}, got {}",
          name, p.tensor.shape(), it->second.shape());
    known.insert(name);
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (const State& s : states_) expect(parameters_[i], parameters_[i].name + '.' + s.name);
    if (!has_master(i)) continue;
    expect(parameters_[i], parameters_[i].name + ".master");
    check_master(i);
  }
  for (const auto& [name, tensor] : state)
    check(known.count(name), "load_state_dict: {} is not part of this optimizer's state", name);
  steps_ = step->second.item_int();
  for (const State& s : states_)
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      store(state.at(parameters_[i].name + '.' + s.name).to(s.tensors[i].device()), s.tensors[i],
            s.scales[i]);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (has_master(i)) {
      const Tensor& p = parameters_[i].tensor;
      const Tensor& kept = masters_[i].kept;
      const Tensor master = state.at(parameters_[i].name + ".master").to(p.device());
      if (master_form_ == MasterWeights::f32) {
        kept.copy_(master);
      } else {
        const Tensor values = master.to(DType::f32).contiguous();
        dispatch<cpu::split_remainder, cuda::split_remainder>(values, p, kept);
        p.bump_version();
      }
    }
  keep_masters();
}

}  // namespace weft::optim
