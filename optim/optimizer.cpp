#include "weft/optim/optimizer.h"

#include <cmath>
#include <cstring>
#include <set>

#include "weft/core/allocator.h"
#include "weft/core/cuda_graph.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/remainder.h"
#include "weft/core/profile.h"
#include "weft/core/random.h"
#include "weft/core/restorer.h"
#include "weft/optim/state_memory.h"

namespace weft::optim {

Optimizer::Optimizer(NamedTensors parameters, const std::vector<GroupRule>& rules, double lr,
                     double weight_decay, const std::optional<std::vector<ParamSettings>>& settings)
    : parameters_(std::move(parameters)), lr_(lr) {
  // Settings come from a sharded optimizer, of which a rank may own nothing.
  check(settings || !parameters_.empty(), "optimizer: needs at least 1 parameter, got none");
  std::set<std::string> names;
  std::set<const TensorImpl*> tensors;
  for (const NamedTensor& p : parameters_) {
    check(p.tensor.defined(), "optimizer: {} must be a tensor, got a null handle", p.name);
    check(is_compute(p.tensor.dtype()), "optimizer: {} must be f32, f64, bf16 or f16, got {}",
          p.name, p.tensor.dtype());
    check(names.insert(p.name).second,
          "optimizer: every parameter needs a unique name, got {} "
          "twice",
          p.name);
    const bool is_leaf = !p.tensor.requires_grad() || p.tensor.impl()->leaf;
    check(is_leaf, "optimizer: {} must be a leaf, got the output of an op", p.name);
    dtypes_.push_back(p.tensor.dtype());
    check(tensors.insert(p.tensor.impl()).second,
          "optimizer: every parameter must be given once, got {} under two names", p.name);
  }
  settings_ = settings ? *settings : assign_groups(parameters_, rules, weight_decay);
  check(settings_.size() == parameters_.size(),
        "optimizer: settings must have one entry for each of {} parameters, got {}",
        parameters_.size(), settings_.size());
  for (const ParamSettings& s : settings_) {
    check_setting("optimizer", "lr_scale", s.lr_scale);
    check_setting("optimizer", "weight_decay", s.weight_decay);
  }
  set_lr(lr);
  if (!parameters_.empty() && parameters_[0].tensor.device().is_gpu())
    outside_ = StateMemory::current();
}

void Optimizer::set_lr(double lr) {
  check_setting("optimizer", "lr", lr);
  lr_ = lr;
}

std::size_t Optimizer::add_state(const char* name, DType dtype) {
  const CategoryScope category(Category::optimizer);
  State state{name, {}, {}, false};
  for (const NamedTensor& p : parameters_) {
    const ProfileScope scope(p.name.c_str());
    const Tensor& t = p.tensor;
    const DType kept = t.dtype() == DType::f64 ? DType::f64 : dtype;
    state.tensors.push_back(StateMemory::zeros(t.shape(), kept, t.device()));
    send_away(state.tensors.back());
    Tensor scale;
    if (kept == DType::f16) scale = Tensor::zeros({}, DType::f32, t.device());
    if (kept == DType::e4m3)
      scale = Tensor::zeros({scale_blocks(t.numel())}, DType::u8, t.device());
    state.scales.push_back(scale);
  }
  states_.push_back(std::move(state));
  return states_.size() - 1;
}

void Optimizer::add_masters(MasterWeights form) {
  master_form_ = form;
  if (form == MasterWeights::none) return;
  const CategoryScope category(Category::optimizer);
  for (const NamedTensor& p : parameters_) {
    const ProfileScope scope(p.name.c_str());
    const Tensor& t = p.tensor;
    Tensor kept;
    if (is_half(t.dtype()) && form == MasterWeights::remainder) {
      check(t.dtype() == DType::bf16, "optimizer: {} must be bf16 to have a remainder, got {}",
            p.name, t.dtype());
      check(t.is_contiguous(),
            "optimizer: {} must be contiguous to have remainders, got strides {}", p.name,
            t.strides());
      kept = StateMemory::zeros({t.numel(), 2}, DType::u8, t.device());
    } else if (is_half(t.dtype())) {
      kept = StateMemory::zeros(t.shape(), DType::f32, t.device());
      kept.copy_(t.detach());
    }
    send_away(kept);
    masters_.push_back({.kept = kept, .version = t.version()});
  }
}

void Optimizer::set_rounding(Rounding rounding) {
  if (rounding == Rounding::nearest) return;
  const CategoryScope category(Category::optimizer);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor place;
    if (const auto& shard = settings_[i].shard) {
      constexpr auto kBytes = static_cast<std::int64_t>(sizeof(ShardPlace));
      const Tensor bytes = Tensor::empty({kBytes}, DType::u8);
      std::memcpy(bytes.raw(), &*shard, sizeof(ShardPlace));
      place = bytes.to(parameters_[i].tensor.device());
    }
    draws_.push_back({stream_of(parameters_[i].name), place});
  }
}

void Optimizer::check_master(std::size_t i) const {
  const Tensor& p = parameters_[i].tensor;
  check(
      !has_master(i) || (is_half(p.dtype()) && p.device() == masters_[i].kept.device()),
      "optimizer: {} changed to {} on {} after its master weight was created; create the optimizer "
      "after to()",
      parameters_[i].name, p.dtype(), p.device());
}

void Optimizer::zero_grad() {
  for (const NamedTensor& p : parameters_) {
    p.tensor.set_grad({});
    if (p.tensor.main_grad().defined()) p.tensor.set_main_grad_filled(false);
  }
}

bool Optimizer::fill_slot(std::size_t i, ParamSlot& slot) {
  const Tensor& p = parameters_[i].tensor;
  const Tensor g = gradient_of(p);
  if (!g.defined()) return false;
  const char* name = parameters_[i].name.c_str();
  check((g.dtype() == DType::f64) == (p.dtype() == DType::f64) && is_compute(g.dtype()),
        "optimizer: the gradient of {} (dtype {}) cannot have dtype {}", name, p.dtype(),
        g.dtype());
  check(p.is_contiguous() && g.is_contiguous(),
        "optimizer: {} and its gradient must be contiguous, got strides {} and {}", name,
        p.strides(), g.strides());
  check_master(i);
  bool is_as_created = p.dtype() == dtypes_[i];
  for (const State& s : states_)
    is_as_created = is_as_created && s.tensors[i].device() == p.device();
  check(is_as_created,
        "optimizer: {} changed to {} on {} after its optimizer was created; create the optimizer "
        "after to()",
        name, p.dtype(), p.device());
  if (p.is_meta()) return true;
  const Tensor master = has_master(i) ? masters_[i].kept : Tensor();
  const bool copied = master.defined() && master_form_ == MasterWeights::f32;
  slot.param = copied ? master.raw() : p.raw();
  slot.half_copy = copied && !masters_[i].alone ? p.raw() : nullptr;
  slot.copy_dtype = copied ? p.dtype() : DType::bf16;
  slot.remainder = master.defined() && !copied ? master.raw() : nullptr;
  slot.grad = g.raw();
  const MainGrad* const main = p.impl()->main_grad;
  if (main && main->reached && p.device().is_gpu())
    slot.reached = Tensor::handle(main->reached).data<double>();
  slot.n = p.numel();
  slot.param_dtype = copied ? DType::f32 : p.dtype();
  slot.grad_dtype = g.dtype();
  slot.stochastic = !draws_.empty();
  if (slot.stochastic) {
    slot.stream = draws_[i].stream;
    slot.first = settings_[i].first;
    if (const Tensor& place = draws_[i].place; place.defined())
      slot.place = static_cast<const ShardPlace*>(place.raw());
  }
  slot.lr_scale = settings_[i].lr_scale;
  slot.weight_decay = settings_[i].weight_decay;
  return true;
}

void Optimizer::reset_stale_masters() {
  for (std::size_t i = 0; i < masters_.size(); ++i)
    if (const Tensor& p = parameters_[i].tensor; has_master(i) && !p.is_meta() &&
                                                 masters_[i].version != p.version() &&
                                                 p.device() == masters_[i].kept.device()) {
      restore_storage(masters_[i].kept.storage());
      if (master_form_ == MasterWeights::remainder)
        masters_[i].kept.zero_();
      else
        masters_[i].kept.copy_(p.detach());
      send_away(masters_[i].kept);
    }
  keep_masters();
}

void Optimizer::before_write(const std::vector<std::size_t>& written) {
  reset_stale_masters();
  for (const std::size_t i : written) parameters_[i].tensor.bump_version();
  keep_masters();
  release_alone();
}

void Optimizer::keep_masters() {
  for (std::size_t i = 0; i < masters_.size(); ++i)
    masters_[i].version = parameters_[i].tensor.version();
}

bool Optimizer::master_is_current(std::size_t i) const {
  const Tensor& p = parameters_[i].tensor;
  return has_master(i) && masters_[i].version == p.version() && is_half(p.dtype()) &&
         p.device() == masters_[i].kept.device();
}

Tensor Optimizer::value(std::size_t i) const {
  const Tensor& p = parameters_[i].tensor;
  if (!master_is_current(i)) return p;
  const Tensor& kept = masters_[i].kept;
  restore_storage(kept.storage());
  if (master_form_ == MasterWeights::f32) return kept;
  const CategoryScope category(Category::optimizer);
  const Tensor merged = Tensor::empty(p.shape(), DType::f32, p.device());
  dispatch<cpu::merge_remainder, cuda::merge_remainder>(p, kept, merged);
  return merged;
}

Tensor Optimizer::sum_of_squares(std::span<const std::int64_t> counts) const {
  const CategoryScope category(Category::optimizer);
  Tensor total;
  std::vector<Tensor> values;
  const auto add_up = [&] {
    const Tensor sums = optim::sums_of_squares(values);
    values.clear();
    if (!sums.defined()) return;
    const Tensor sum = sums.select(0, sums.numel() - 1);
    if (total.defined())
      total.add_(sum);
    else
      total = sum;
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!counts.empty() && counts[i] == 0) continue;
    const Tensor all = value(i).detach();
    values.push_back(counts.empty() ? all : all.view({-1}).narrow(0, 0, counts[i]));
    // One at a time: all of them as f32 would need the memory that remainders and offload save.
    if (master_is_current(i) && (outside_ || master_form_ == MasterWeights::remainder)) {
      add_up();
      send_away(masters_[i].kept);
    }
  }
  add_up();
  return total;
}

Tensor Optimizer::parameter_norm() const {
  const Tensor squares = sum_of_squares();
  return squares.defined() ? squares.sqrt() : squares;
}

const std::vector<std::size_t>& Optimizer::with_gradient() {
  with_gradient_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (gradient_of(parameters_[i].tensor).defined()) with_gradient_.push_back(i);
  return with_gradient_;
}

const StepNumbers* Optimizer::numbers_on_device(std::function<StepNumbers()> numbers) const {
  cuda::Graph* const graph = cuda::Graph::capturing();
  if (!graph) return nullptr;
  const auto place = graph->varying<StepNumbers>();
  graph->before_replay([host = place.host, numbers = std::move(numbers)] { *host = numbers(); });
  return place.device;
}

void Optimizer::count_replays(cuda::Graph& graph) {
  std::vector<const void*> places;
  const auto place_of = [this](std::size_t i) -> const void* {
    return has_master(i) && masters_[i].alone ? nullptr : parameters_[i].tensor.raw();
  };
  for (const std::size_t i : with_gradient()) places.push_back(place_of(i));
  graph.check_replay([this, place_of, written = with_gradient_, places] {
    for (std::size_t k = 0; k < written.size(); ++k)
      check(place_of(written[k]) == places[k],
            "optimizer: {} has moved since the step was captured; capture it again",
            parameters_[written[k]].name);
  });
  graph.before_replay([this, written = with_gradient_] {
    ++steps_;
    before_write(written);
  });
}

StepResult Optimizer::step(const GradClip& clip) {
  const auto nothing = [](std::size_t) {};
  const std::size_t all[] = {parameters_.size()};
  return step(clip, all, nothing);
}

StepResult Optimizer::step(const GradClip& clip, std::span<const std::size_t> ends,
                           const std::function<void(std::size_t portion)>& after) {
  const bool readable = clip.scale.defined() && clip.scale.device().is_cpu();
  const bool skipped = readable && !std::isfinite(*clip.scale.data<double>());
  if (skipped) {
    // after() may write parameters and call keep_masters(), so apply earlier writes first.
    reset_stale_masters();
  } else if (cuda::Graph* const graph = cuda::Graph::capturing()) {
    count_replays(*graph);
  } else {
    ++steps_;
    before_write(with_gradient());
  }
  const bool on_device = clip.scale.defined() && !clip.scale.is_meta();
  const double* const scale = on_device ? clip.scale.data<double>() : nullptr;
  if (outside_ && !skipped) {
    update_in_groups(scale, ends, after);
    return {skipped};
  }
  std::size_t begin = 0;
  for (std::size_t k = 0; k < ends.size(); begin = ends[k++]) {
    if (!skipped) update(scale, begin, ends[k]);
    after(k);
  }
  return {skipped};
}

}  // namespace weft::optim
