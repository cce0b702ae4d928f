#include "weft/distributed/sharded_optimizer.h"

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

Tensor range_of(const Tensor& flat, const OwnedRange& r) {
  return flat.alias({r.size}, {1}, flat.offset() + r.in_bucket);
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(Ddp& ddp, const optim::AdamWOptions& options) : ddp_(ddp) {
  make<optim::AdamW>(options);
}

ShardedOptimizer::ShardedOptimizer(Ddp& ddp, const optim::SgdOptions& options) : ddp_(ddp) {
  make<optim::Sgd>(options);
}

// What a parameter trains with follows from its own name and shape, not from those of a slice.
template <class Optimizer, class Options>
void ShardedOptimizer::make(const Options& options) {
  check(ddp_.options().shard, "sharded_optimizer: the Ddp must be made with shard");
  const std::vector<optim::ParamSettings> whole =
      options.settings
          ? *options.settings
          : optim::assign_groups(ddp_.parameters(), options.groups, options.weight_decay);
  NamedTensors slices;
  std::vector<optim::ParamSettings> settings;
  for (const Ddp::Bucket& b : ddp_.buckets()) {
    for (const OwnedRange& r : b.owned) {
      const Tensor slice = range_of(b.param, r);
      slice.set_main_grad(range_of(b.grad, r));
      slices.push_back({ddp_.parameters()[r.parameter].name, slice});
      settings.push_back(whole.at(r.parameter));
      ranges_.push_back(r);
      counted_.push_back(ddp_.counted(r));
    }
    ends_.push_back(slices.size());
  }
  works_.reserve(ends_.size());
  Options own = options;
  own.settings = std::move(settings);
  slices_ = std::make_unique<Optimizer>(std::move(slices), own);
}

ShardedOptimizer::~ShardedOptimizer() {
  try {
    wait();
  } catch (const Error&) {
    // Whoever uses the parameters next hears of it.
  }
}

optim::StepResult ShardedOptimizer::step(const optim::GradClip& clip) {
  wait();
  const auto gather = [this](std::size_t k) {
    const Ddp::Bucket& b = ddp_.buckets()[k];
    works_.push_back(b.group->all_gather(b.param, b.param_slice));
  };
  const optim::StepResult result = slices_->step(clip, ends_, gather);
  slices_->keep_masters();
  return result;
}

void ShardedOptimizer::wait() {
  for (Work& w : works_) w.wait();
  works_.clear();
}

double ShardedOptimizer::parameter_norm() const {
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < ranges_.size(); ++i)
    if (counted_[i] > 0) values.push_back(slices_->value(i).narrow(0, 0, counted_[i]));
  return ddp_.joint_norm(values);
}

Piece ShardedOptimizer::piece_of(std::size_t range) const {
  const OwnedRange& r = ranges_[range];
  const NamedTensor& p = ddp_.parameters()[r.parameter];
  const auto found = ddp_.layout().find(p.name);
  const bool cut = found != ddp_.layout().end() && !found->second.part.cuts.empty();
  Piece piece = cut ? Piece::of(found->second.part) : Piece::of(p.tensor.shape());
  piece.begin = r.in_parameter;
  piece.end = r.in_parameter + r.size;
  return piece;
}

Pieces ShardedOptimizer::state() const {
  StateDict state = slices_->state_dict();
  Pieces out;
  const Tensor step = state.at("step");
  out["step"] = {step, Piece::of(step.shape())};
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const std::string prefix = slices_->parameters()[i].name + '.';
    for (auto it = state.lower_bound(prefix); it != state.end() && it->first.starts_with(prefix);
         ++it)
      out[it->first] = {it->second, piece_of(i)};
  }
  return out;
}

void ShardedOptimizer::load_state(const PieceFiles& files) {
  StateDict state = slices_->state_dict();
  for (const auto& [name, piece] : this->state())
    files.read_into(name, piece.piece, state.at(name));
  slices_->load_state_dict(state);
}

}  // namespace weft::distributed
