#include "weft/distributed/parallel_optimizer.h"

#include <algorithm>
#include <set>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/profile.h"
#include "weft/distributed/model_slices.h"
#include "weft/distributed/shard_place.h"
#include "weft/distributed/sharded_optimizer.h"

namespace weft::distributed {
namespace {

// How a parameter is cut; null: this rank holds the whole.
const nn::ShardSpec* cut_of(const Ddp& ddp, std::size_t parameter) {
  const auto found = ddp.layout().find(ddp.parameters()[parameter].name);
  return found != ddp.layout().end() && !found->second.spec.cuts.empty() ? &found->second.spec
                                                                         : nullptr;
}

std::optional<ShardPlace> shard_of(const Ddp& ddp, std::size_t parameter) {
  const nn::ShardSpec* const cut = cut_of(ddp, parameter);
  return cut ? std::optional(place_of(*cut, ddp.parameters()[parameter].name)) : std::nullopt;
}

// Elements [begin, end) of this rank's shard of a parameter.
ShardSlice slice_of(const Ddp& ddp, std::size_t parameter, std::int64_t begin, std::int64_t end) {
  const nn::ShardSpec* const cut = cut_of(ddp, parameter);
  ShardSlice slice =
      cut ? ShardSlice::of(*cut) : ShardSlice::of(ddp.parameters()[parameter].tensor.shape());
  slice.begin = begin;
  slice.end = end;
  return slice;
}

/// Every rank updates all parameters that it holds.
class ReplicatedOptimizer : public RangeOptimizer {
 public:
  ReplicatedOptimizer(Ddp& ddp, const optim::AnyOptions& options, Members members)
      : RangeOptimizer(&ddp) {
    for (const Ddp::Bucket& b : ddp.buckets()) {
      if (!includes(members, b.layout)) continue;
      for (const BucketEntry& e : b.layout.entries)
        add(e.parameter, 0, ddp.parameters()[e.parameter].tensor, b.group->rank() == 0);
    }
    make(options);
  }
  optim::StepResult step(const optim::GradClip& clip) override { return inner_->step(clip); }
  SliceSources state_sources() const override {
    return slice_sources(inner_->state_sources(), ddp_->mesh(), ddp_->layout());
  }
};

/// The optimizer of a job with one rank.
class LocalOptimizer : public ParallelOptimizer {
 public:
  LocalOptimizer(const NamedTensors& parameters, const optim::AnyOptions& options)
      : ParallelOptimizer(nullptr) {
    const bool has_half =
        std::any_of(parameters.begin(), parameters.end(),
                    [](const NamedTensor& p) { return is_half(p.tensor.dtype()); });
    inner_ = optim::make(parameters, options);
    if (has_half) add_main_grads(parameters);
    first_lr_ = inner_->lr();
    zero_grad();  // zeros, but no gradients yet
  }

  ~LocalOptimizer() override {
    for (std::size_t i = 0; i < main_grads_.size(); ++i)
      if (has_main_grad(i)) inner_->parameters()[i].tensor.set_main_grad({});
  }

  void watch(Tape&) override {}
  optim::GradClip finish(double max_norm) override {
    for (std::size_t i = 0; i < main_grads_.size(); ++i)
      check(has_main_grad(i),
            "optimizer: {} must have the main_grad of this object, got that of a later optimizer "
            "or none",
            inner_->parameters()[i].name);
    const optim::GradClip clip = optim::measure_clip(inner_->parameters(), max_norm);
    if (clip.norm.defined()) return clip;
    // No parameter has a gradient: a norm of 0, as on several ranks.
    return optim::clip_from(Tensor::zeros({1}, DType::f64, device()), max_norm);
  }
  optim::StepResult step(const optim::GradClip& clip) override { return inner_->step(clip); }
  void zero_grad() override { inner_->zero_grad(); }
  double lr() const override { return inner_->lr(); }
  void set_lr(double lr) override { inner_->set_lr(lr); }
  double first_lr() const override { return first_lr_; }
  std::int64_t steps() const override { return inner_->steps(); }
  void store_as_masters(const std::vector<Tensor>& p) override { inner_->store_as_masters(p); }
  void restore_values() override { inner_->restore_values(); }
  void release_values() override { inner_->release_values(); }
  Tensor parameter_norm() const override { return inner_->parameter_norm(); }
  Tensor zero_gradients() const override {
    const NoGradGuard off;
    const Tensor zeros = Tensor::zeros({}, DType::f64, device());
    for (const NamedTensor& p : inner_->parameters())
      if (const Tensor g = optim::gradient_of(p.tensor); g.defined())
        zeros.add_(eq(g, 0).to(DType::f64).sum());
    return zeros;
  }
  SliceSources state_sources() const override {
    SliceSources out;
    for (const auto& [name, source] : inner_->state_sources())
      out[name] = {source, ShardSlice::of(source.shape)};
    return out;
  }
  void load_state(const ShardFiles& files) override {
    inner_->load_state_dict(files.like(inner_->state_dict()));
  }
  Tensor counted_squares() const override { return inner_->sum_of_squares(); }

 private:
  Device device() const {
    const NamedTensors& all = inner_->parameters();
    return all.empty() ? kCpu : all[0].tensor.device();
  }
  void add_main_grads(const NamedTensors& parameters) {
    const CategoryScope category(Category::gradient);
    for (const NamedTensor& p : parameters) {
      const ProfileScope scope(p.name.c_str());
      const DType dtype = p.tensor.dtype() == DType::f64 ? DType::f64 : DType::f32;
      main_grads_.push_back(Tensor::zeros(p.tensor.shape(), dtype, p.tensor.device()));
      p.tensor.set_main_grad(main_grads_.back());
    }
  }
  // Not after another optimizer of the same parameters was made.
  bool has_main_grad(std::size_t i) const {
    const Tensor now = inner_->parameters()[i].tensor.main_grad();
    return now.defined() && now.storage() == main_grads_[i].storage();
  }

  std::unique_ptr<optim::Optimizer> inner_;
  std::vector<Tensor> main_grads_;  // of all parameters, if one of them has 16 bits
  double first_lr_ = 0;
};

}  // namespace

SlicedTensors ParallelOptimizer::state() const {
  const NoGradGuard off;
  SlicedTensors out;
  for (const auto& [name, source] : state_sources())
    out[name] = {source.values.read().clone(), source.slice};
  return out;
}

bool includes(Members members, const BucketLayout& bucket) {
  return members == Members::all || (members == Members::experts) == bucket.expert;
}

void RangeOptimizer::add(std::size_t parameter, std::int64_t begin, const Tensor& values,
                         bool first) {
  const std::int64_t end = begin + values.numel();
  const std::int64_t counted =
      std::clamp(ddp_->counted(parameter) - begin, std::int64_t{0}, values.numel());
  ranges_.push_back({parameter, begin, end, first ? counted : 0});
  values_.push_back({ddp_->parameters()[parameter].name, values});
}

// Settings depend on a parameter's own name and shape, not on those of a range, and a pattern may
// match parameters that another optimizer updates.
void RangeOptimizer::make(const optim::AnyOptions& options) {
  optim::AnyOptions own = options;
  std::visit(
      [&](auto& o) {
        const std::vector<optim::ParamSettings> all =
            o.settings ? *o.settings
                       : optim::assign_groups(ddp_->parameters(), o.groups, o.weight_decay);
        o.settings.emplace();
        for (const Range& r : ranges_) {
          optim::ParamSettings s = all.at(r.parameter);
          s.first = r.begin;
          if constexpr (requires { o.rounding; })
            if (o.rounding == optim::Rounding::stochastic) s.shard = shard_of(*ddp_, r.parameter);
          o.settings->push_back(s);
        }
      },
      own);
  inner_ = optim::make(std::move(values_), own);
  first_lr_ = inner_->lr();
}

SliceSources RangeOptimizer::slices(bool all) const {
  const TensorSources state = inner_->state_sources();
  SliceSources out;
  const TensorSource& step = state.at("step");
  if (all || ddp_->mesh().world().rank() == 0) out["step"] = {step, ShardSlice::of(step.shape)};
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const Range& r = ranges_[i];
    if (r.begin == r.end || !(all || r.counted > 0)) continue;
    const std::string prefix = inner_->parameters()[i].name + '.';
    for (auto it = state.lower_bound(prefix); it != state.end() && it->first.starts_with(prefix);
         ++it)
      out[it->first] = {{{r.end - r.begin},
                         it->second.dtype,
                         [read = it->second.read] { return read().view({-1}); }},
                        slice_of(*ddp_, r.parameter, r.begin, r.end)};
  }
  return out;
}

SlicedTensors RangeOptimizer::values(bool all) const {
  SlicedTensors out;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const Range& r = ranges_[i];
    if (r.begin == r.end || !(all || r.counted > 0)) continue;
    const NamedTensor& p = inner_->parameters()[i];
    out[p.name] = {p.tensor.detach().view({-1}), slice_of(*ddp_, r.parameter, r.begin, r.end)};
  }
  return out;
}

SliceSources RangeOptimizer::state_sources() const { return slices(false); }

// Rejects files that lack a state this rank needs, or hold a state of these parameters that this
// optimizer does not have, such as another optimizer's or another dtype's.
void RangeOptimizer::check_names(const ShardFiles& files, const StateDict& state) const {
  for (const auto& [name, slice] : slices(true))
    check(files.contains(name), "load_state_dict: {} is missing from the optimizer state", name);
  std::set<std::string> kinds;
  for (const auto& [name, tensor] : state) kinds.insert(name.substr(name.rfind('.') + 1));
  std::set<std::string> own;
  for (const NamedTensor& p : inner_->parameters()) own.insert(p.name);
  for (const std::string& name : files.names()) {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos || !own.contains(name.substr(0, dot))) continue;
    check(kinds.contains(name.substr(dot + 1)),
          "load_state_dict: {} is not part of this optimizer's state", name);
  }
}

void RangeOptimizer::load_state(const ShardFiles& files) {
  StateDict state = inner_->state_dict();
  check_names(files, state);
  for (const auto& [name, slice] : slices(true))
    files.read_into(name, slice.slice, state.at(name).view({-1}));
  inner_->load_state_dict(state);
}

Tensor RangeOptimizer::counted_squares() const {
  std::vector<std::int64_t> counts;
  for (const Range& r : ranges_) counts.push_back(r.counted);
  return inner_->sum_of_squares(counts);
}

std::unique_ptr<ParallelOptimizer> make_optimizer(Ddp& ddp, const optim::AnyOptions& options,
                                                  Members members) {
  if (ddp.options().shard) return std::make_unique<ShardedOptimizer>(ddp, options, members);
  return std::make_unique<ReplicatedOptimizer>(ddp, options, members);
}

std::unique_ptr<ParallelOptimizer> make_optimizer(nn::Module& model, const DeviceMesh& mesh,
                                                  const Layout& layout,
                                                  const optim::AnyOptions& options,
                                                  const DdpOptions& ddp) {
  if (mesh.world().size() == 1)
    return std::make_unique<LocalOptimizer>(updated_parameters(model, ddp), options);
  DdpOptions own = ddp;
  if (optim::has_scale_blocks(options)) own.slice_multiple = kScaleBlock;
  auto owned = std::make_unique<Ddp>(model, mesh, layout, own);
  std::unique_ptr<ParallelOptimizer> optimizer = make_optimizer(*owned, options);
  optimizer->owned_ddp_ = std::move(owned);
  return optimizer;
}

ChainedOptimizer::ChainedOptimizer(Ddp& ddp,
                                   std::vector<std::unique_ptr<ParallelOptimizer>> children)
    : ParallelOptimizer(&ddp), children_(std::move(children)) {
  check(!children_.empty(), "chained_optimizer: needs at least one optimizer, got none");
  const bool now = lr() > 0;
  const double own = now ? lr() : first_lr();
  for (const auto& child : children_) {
    const double rate = now ? child->lr() : child->first_lr();
    check(own > 0 || rate == 0,
          "chained_optimizer: the first optimizer must be made with a learning rate above 0, to "
          "which that of the others, {}, keeps its ratio",
          rate);
    ratios_.push_back(own > 0 ? rate / own : 1);
  }
}

optim::StepResult ChainedOptimizer::step(const optim::GradClip& clip) {
  optim::StepResult result;
  for (const auto& child : children_) result.skipped |= child->step(clip).skipped;
  return result;
}

void ChainedOptimizer::store_as_masters(const std::vector<Tensor>& parameters) {
  for (const auto& child : children_) child->store_as_masters(parameters);
}

void ChainedOptimizer::restore_values() {
  for (const auto& child : children_) child->restore_values();
}

void ChainedOptimizer::release_values() {
  for (const auto& child : children_) child->release_values();
}

void ChainedOptimizer::wait() {
  for (const auto& child : children_) child->wait();
}

void ChainedOptimizer::wait(const nn::Module& part) {
  for (const auto& child : children_) child->wait(part);
}

void ChainedOptimizer::set_lr(double lr) {
  for (std::size_t i = 0; i < children_.size(); ++i) children_[i]->set_lr(lr * ratios_[i]);
}

SliceSources ChainedOptimizer::state_sources() const {
  SliceSources out;
  for (const auto& child : children_) out.merge(child->state_sources());
  return out;
}

void ChainedOptimizer::load_state(const ShardFiles& files) {
  for (const auto& child : children_) child->load_state(files);
}

SlicedTensors ChainedOptimizer::parameter_slices() {
  SlicedTensors out;
  for (const auto& child : children_) out.merge(child->parameter_slices());
  return out;
}

NamedTensors ChainedOptimizer::held_slices() const {
  NamedTensors out;
  for (const auto& child : children_)
    for (const NamedTensor& p : child->held_slices()) out.push_back(p);
  return out;
}

void ChainedOptimizer::load_parameters(const ShardFiles& files) {
  for (const auto& child : children_) child->load_parameters(files);
}

Tensor ChainedOptimizer::counted_squares() const {
  Tensor total;
  for (const auto& child : children_) {
    const Tensor squares = child->counted_squares();
    if (total.defined() && squares.defined())
      total.add_(squares);
    else if (squares.defined())
      total = squares;
  }
  return total;
}

}  // namespace weft::distributed
