#include "weft/distributed/sharded_optimizer.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/distributed/fsdp.h"

namespace weft::distributed {
namespace {

Tensor range_of(const Tensor& slice, const OwnedRange& r) {
  return slice.alias({r.size}, {1}, r.in_slice);
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(Ddp& ddp, const optim::AnyOptions& options, Members members)
    : RangeOptimizer(&ddp) {
  take_slices(members);
  make(options);
  for (const auto& codes : codes_)
    if (codes) codes->begin();
}

void ShardedOptimizer::take_slices(Members members) {
  check(ddp_->options().shard, "sharded_optimizer: the Ddp must be made with shard");
  std::size_t ranges = 0;
  for (auto b = ddp_->buckets().rbegin(); b != ddp_->buckets().rend(); ++b) {
    if (!includes(members, b->layout)) continue;
    for (const BucketEntry& e : b->layout.entries)
      portion_of_[ddp_->parameters()[e.parameter].tensor.impl()] = ends_.size();
    for (const OwnedRange& r : b->owned) {
      const Tensor slice = range_of(b->param_slice, r);
      const MainGrad* const main = ddp_->parameters()[r.parameter].tensor.impl()->main_grad;
      slice.set_main_grad(range_of(b->slice, r), Tensor::handle(main->reached));
      add(r.parameter, r.in_parameter, slice, b->replica == 0);
    }
    portions_.push_back(&*b);
    codes_.push_back(b->layout.codes ? std::make_unique<Fp8Gather>(*ddp_, *b) : nullptr);
    ends_.push_back(ranges += b->owned.size());
  }
  works_.reserve(ends_.size());
}

ShardedOptimizer::~ShardedOptimizer() {
  try {
    wait();
  } catch (const Error&) {
    // The next use of the parameters reports the error.
  }
}

optim::StepResult ShardedOptimizer::step(const optim::GradClip& clip) {
  release_values();  // the update makes them old
  if (fsdp()) fsdp()->begin_update();
  forget_arrived();
  take_reached();
  const optim::StepResult result =
      inner_->step(clip, ends_, [this](std::size_t portion) { gather(portion); });
  inner_->keep_masters();
  return result;
}

// A slice has a gradient if its parameter has one.
void ShardedOptimizer::take_reached() {
  std::size_t i = 0;
  for (const Ddp::Bucket* b : portions_)
    for (const OwnedRange& r : b->owned)
      inner_->parameters()[i++].tensor.set_main_grad_filled(
          ddp_->parameters()[r.parameter].tensor.main_grad_filled());
}

std::size_t ShardedOptimizer::bucket_of(std::size_t portion) const {
  return static_cast<std::size_t>(portions_[portion] - ddp_->buckets().data());
}

SlicedTensors ShardedOptimizer::parameter_slices() {
  if (!fsdp()) return {};
  fsdp()->take_written();
  return values(false);
}

void ShardedOptimizer::load_parameters(const ShardFiles& files) {
  if (!fsdp()) return;
  fsdp()->begin_update();
  for (const auto& [name, slice] : values(true)) files.read_into(name, slice.slice, slice.values);
  for (std::size_t portion = 0; portion < portions_.size(); ++portion)
    fsdp()->updated(bucket_of(portion));
}

void ShardedOptimizer::restore_values() {
  wait();
  if (fsdp()) fsdp()->restore();
  for (const auto& codes : codes_)
    if (codes) codes->restore();
}

// No wait: only restore_values(), which waits, gives the bf16 weights memory that is released here,
// and the gathers of a step go on while the next forward pass begins.
void ShardedOptimizer::release_values() {
  if (fsdp()) fsdp()->release();
  for (const auto& codes : codes_)
    if (codes) codes->release();
}

void ShardedOptimizer::load_state(const ShardFiles& files) {
  forget_arrived();
  if (fsdp()) fsdp()->begin_update();
  for (const auto& codes : codes_)
    if (codes) codes->take_written();
  RangeOptimizer::load_state(files);
  if (inner_->master_weights() != optim::MasterWeights::remainder) return;
  for (std::size_t portion = 0; portion < portions_.size(); ++portion) gather(portion);
  inner_->keep_masters();
}

void ShardedOptimizer::forget_arrived() {
  wait();
  works_.clear();
  arrived_ = 0;
}

void ShardedOptimizer::gather(std::size_t portion) {
  if (codes_[portion]) return works_.push_back(codes_[portion]->gather());
  const Ddp::Bucket& b = *portions_[portion];
  if (fsdp()) return fsdp()->updated(bucket_of(portion));
  works_.push_back(b.group->all_gather(b.param, b.param_slice));
}

void ShardedOptimizer::wait() {
  wait_for(works_.size());
  if (fsdp()) fsdp()->wait();
}

void ShardedOptimizer::wait(const nn::Module& part) {
  if (fsdp()) return fsdp()->use(part);
  if (arrived_ == works_.size()) return;
  const auto [known, fresh] = portions_of_.try_emplace(&part, 0);
  if (fresh) known->second = portions_of(part);
  wait_for(std::min(known->second, works_.size()));
}

// Number of portions up to the last one with a parameter of this module.
std::size_t ShardedOptimizer::portions_of(const nn::Module& part) const {
  std::size_t portions = 0;
  for (const NamedTensor& p : part.named_parameters()) {
    const auto found = portion_of_.find(p.tensor.impl());
    if (found != portion_of_.end()) portions = std::max(portions, found->second + 1);
  }
  return portions;
}

void ShardedOptimizer::wait_for(std::size_t portions) {
  for (; arrived_ < portions; ++arrived_) {
    works_[arrived_].wait();
    if (codes_[arrived_]) codes_[arrived_]->arrived();
  }
}

}  // namespace weft::distributed
