// Saves and loads the state of an optimizer.
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/remainder.h"
#include "weft/core/restorer.h"
#include "weft/optim/optimizer.h"

namespace weft::optim {
namespace {

Tensor from_blocks(const Tensor& stored, const Tensor& exponents) {
  const Tensor out = Tensor::empty(stored.shape(), DType::f32);
  const e4m3* const x = stored.data<e4m3>();
  const std::uint8_t* const e = exponents.data<std::uint8_t>();
  float* const y = out.data<float>();
  for (std::int64_t i = 0; i < out.numel(); ++i)
    y[i] = static_cast<float>(x[i]) * block_scale(e[i / kScaleBlock]);
  return out;
}

// Exported numbers come back unchanged, though a block's exponent may be smaller than it was.
void store_blocks(const Tensor& values, const Tensor& stored, const Tensor& exponents,
                  const E4m3Rounding& how) {
  const Tensor from = values.to(DType::f32).to(kCpu).contiguous();
  const Tensor codes = Tensor::empty(stored.shape(), DType::e4m3);
  const Tensor scales = Tensor::empty(exponents.shape(), DType::u8);
  const float* const x = from.data<float>();
  e4m3* const y = codes.data<e4m3>();
  for (std::int64_t b = 0; b < scales.numel(); ++b) {
    const std::int64_t begin = b * kScaleBlock, end = std::min(begin + kScaleBlock, from.numel());
    float largest = 0;
    for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
    const std::uint8_t e = block_exponent(largest);
    scales.data<std::uint8_t>()[b] = e;
    for (std::int64_t i = begin; i < end; ++i)
      y[i] = round_e4m3(x[i] * inverse_block_scale(e), how, 0);
  }
  stored.copy_(codes);
  exponents.copy_(scales);
}

// A state in its compute dtype: f32, or f64 for an f64 parameter.
Tensor unscaled(const Tensor& stored, const Tensor& scale, DType dtype) {
  Tensor out = Tensor::empty(stored.shape(), dtype, stored.device());
  if (stored.dtype() == DType::e4m3) {
    if (!out.is_meta()) out.copy_(from_blocks(stored.to(kCpu), scale.to(kCpu)));
    return out;
  }
  out.copy_(stored);
  if (scale.defined() && !scale.is_meta()) out.mul_(scale.item());
  return out;
}

// The dtype in which a state leaves.
DType exported(DType stored) { return stored == DType::f64 ? DType::f64 : DType::f32; }

constexpr double kLargestF16State = 32752;  // half of the f16 range leaves room for growth

// Writes values to a state, with a new scale where it has one.
void store(const Tensor& values, const Tensor& stored, const Tensor& scale, bool keeps_above_zero) {
  if (!scale.defined() || scale.is_meta()) {
    stored.copy_(values);
    return;
  }
  if (stored.dtype() == DType::e4m3)
    return store_blocks(values, stored, scale, {.keeps_above_zero = keeps_above_zero});
  std::vector<double> shrunk(static_cast<std::size_t>(values.numel()));
  values.copy_to(shrunk);
  double largest = 0;
  for (const double x : shrunk) largest = std::max(largest, std::abs(x));
  const double s = static_cast<float>(largest / kLargestF16State), by = s == 0 ? 0 : 1 / s;
  scale.fill_(s);
  for (double& x : shrunk) {
    const bool keeps = keeps_above_zero && x > 0 && s > 0;
    x *= by;
    if (keeps) x = std::max(x, 0x1p-24);
  }
  stored.copy_(Tensor::from(std::span<const double>(shrunk), values.shape()));
}

}  // namespace

Tensor Optimizer::read_state(const State& s, std::size_t i, bool copies) const {
  const Tensor& stored = s.tensors[i];
  const RestoredScope here(stored.storage());
  const DType dtype = exported(stored.dtype());
  const bool as_it_is = !copies && !outside_ && stored.dtype() == dtype && !s.scales[i].defined();
  return as_it_is ? stored : unscaled(stored, s.scales[i], dtype);
}

Tensor Optimizer::read_master(std::size_t i, bool copies) const {
  const Tensor master = value(i);
  const bool as_it_is = !copies && !outside_ && master.dtype() == DType::f32;
  const Tensor out = as_it_is ? master : unscaled(master, Tensor(), DType::f32);
  send_away(i, i + 1);
  return out;
}

StateDict Optimizer::state_dict() const {
  StateDict out;
  out.emplace("step", Tensor::full({1}, static_cast<double>(steps_), DType::i64));
  for (const State& s : states_)
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      out.emplace(parameters_[i].name + '.' + s.name, read_state(s, i, true));
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (has_master(i)) out.emplace(parameters_[i].name + ".master", read_master(i, true));
  return out;
}

TensorSources Optimizer::state_sources() const {
  TensorSources out;
  out["step"] = {{1}, DType::i64, [steps = steps_] {
                   return Tensor::full({1}, static_cast<double>(steps), DType::i64);
                 }};
  for (const State& s : states_)
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      out[parameters_[i].name + '.' + s.name] = {s.tensors[i].shape(),
                                                 exported(s.tensors[i].dtype()),
                                                 [this, &s, i] { return read_state(s, i, false); }};
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (has_master(i))
      out[parameters_[i].name + ".master"] = {parameters_[i].tensor.shape(), DType::f32,
                                              [this, i] { return read_master(i, false); }};
  return out;
}

void Optimizer::load_state_dict(const StateDict& state) {
  const auto step = state.find("step");
  check(step != state.end(), "load_state_dict: the optimizer state must have \"step\", got none");
  check(step->second.numel() == 1, "load_state_dict: step must have 1 element, got shape {}",
        step->second.shape());
  check(is_integral(step->second.dtype()) && !step->second.is_meta(),
        "load_state_dict: step must be an integer, got {} on {}", step->second.dtype(),
        step->second.device());
  const std::int64_t steps = step->second.item_int();
  check(steps >= 0, "load_state_dict: step must be at least 0, got {}", steps);
  std::set<std::string> known{"step"};
  const auto expect = [&](const NamedTensor& p, const std::string& name) {
    const auto it = state.find(name);
    check(it != state.end(), "load_state_dict: {} is missing from the optimizer state", name);
    check(it->second.shape() == p.tensor.shape(), "load_state_dict: {} must have shape {}, got {}",
          name, p.tensor.shape(), it->second.shape());
    check(is_compute(it->second.dtype()),
          "load_state_dict: {} must be f32, f64, bf16 or f16, got {}", name, it->second.dtype());
    check(!it->second.is_meta() || p.tensor.is_meta(),
          "load_state_dict: {} must have values, got a tensor on meta", name);
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
  steps_ = steps;
  for (const State& s : states_)
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      restore_storage(s.tensors[i].storage());
      store(state.at(parameters_[i].name + '.' + s.name).to(s.tensors[i].device()), s.tensors[i],
            s.scales[i], s.keeps_above_zero);
      send_away(s.tensors[i]);
    }
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (has_master(i)) {
      const Tensor& p = parameters_[i].tensor;
      const Tensor& kept = masters_[i].kept;
      restore_storage(kept.storage());
      const Tensor master = state.at(parameters_[i].name + ".master").to(p.device());
      if (master_form_ == MasterWeights::f32) {
        kept.copy_(master);
        if (masters_[i].alone) p.bump_version();  // its value has changed
      } else {
        const Tensor values = master.to(DType::f32).contiguous();
        dispatch<cpu::split_remainder, cuda::split_remainder>(values, p, kept);
        p.bump_version();
      }
      send_away(kept);
    }
  keep_masters();
  release_alone();
}

}  // namespace weft::optim
