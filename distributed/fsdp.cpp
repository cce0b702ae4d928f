#include "weft/distributed/fsdp.h"

#include <algorithm>
#include <set>
#include <utility>

#include "weft/autograd/recompute.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/restorer.h"

namespace weft::distributed {
namespace {

bool has(const std::vector<std::size_t>& buckets, std::size_t b) {
  return std::find(buckets.begin(), buckets.end(), b) != buckets.end();
}

void drop_restorer(const Tensor& t) { delete std::exchange(t.storage()->restorer, nullptr); }

thread_local std::function<void()> in_gather;
thread_local std::int64_t gathers_before = 0;

}  // namespace

void testing::at_gather(std::int64_t gather, std::function<void()> f) {
  gathers_before = gather;
  in_gather = std::move(f);
}

/// Gathers parameters that a backward asks for and no use() has announced.
class Fsdp::Weights : public Restorer {
 public:
  Weights(Fsdp& fsdp, std::size_t bucket) : fsdp_(fsdp), bucket_(bucket) {}
  void restore(Storage&) override {
    fsdp_.start_gather(bucket_);
    fsdp_.finish_gather(bucket_);
  }

 private:
  Fsdp& fsdp_;
  const std::size_t bucket_;
};

/// Gives gradients memory when the first one of a unit is written.
class Fsdp::Gradients : public Restorer {
 public:
  Gradients(Fsdp& fsdp, std::size_t bucket) : fsdp_(fsdp), bucket_(bucket) {}
  void restore(Storage&) override { fsdp_.begin_gradient(bucket_); }

 private:
  Fsdp& fsdp_;
  const std::size_t bucket_;
};

Fsdp::Fsdp(std::vector<Bucket>& buckets, const NamedTensors& parameters, const DdpOptions& options)
    : buckets_(buckets), parameters_(parameters), options_(options), reached_(parameters.size()) {}

Fsdp::~Fsdp() {
  for (const Bucket& b : buckets_) {
    drop_restorer(b.param);
    drop_restorer(b.grad);
  }
}

void Fsdp::take() {
  const NoGradGuard quiet;
  const std::size_t i = states_.size();
  Bucket& b = buckets_[i];
  State& s = states_.emplace_back();
  for (const BucketEntry& e : b.layout.entries)
    bucket_of_[parameters_[e.parameter].tensor.impl()] = i;
  s.whole = b.group->size() == 1;
  s.kept = options_.reshard_depth >= 0 && b.layout.unit >= options_.reshard_depth;
  if (s.whole) return;
  {
    const CategoryScope category(Category::parameter);
    b.param_slice = b.param_slice.clone();
  }
  {
    const CategoryScope category(Category::gradient);
    b.slice = Tensor::zeros(b.slice.shape(), b.slice.dtype(), b.slice.device());
  }
  s.version = b.param.version();
  release_until_needed(b.param.storage(), new Weights(*this, i));
  release_until_needed(b.grad.storage(), new Gradients(*this, i));
}

Fsdp::Use& Fsdp::use_of(const nn::Module& part) {
  const auto [found, fresh] = uses_.try_emplace(&part);
  if (!fresh) return found->second;
  found->second.read_in_backward = part.backward_reads_parameters();
  std::set<int> units;
  for (const Tensor& p : part.parameters())
    if (const auto b = bucket_of_.find(p.impl()); b != bucket_of_.end())
      units.insert(buckets_[b->second].layout.unit);
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (units.contains(buckets_[b].layout.unit)) found->second.buckets.push_back(b);
  return found->second;
}

// The next use of another unit, if forward goes on as in the last training step. A forward without
// a tape does not change what is expected.
const Fsdp::Use* Fsdp::follow(const Use& now, bool begins) {
  if (begins) learned_ = order_.size();
  place_ = begins ? 0 : place_ + 1;
  if (place_ >= order_.size() || order_[place_] != &now) {
    if (Tape::current()) {
      order_.resize(std::min(place_, order_.size()));
      order_.push_back(&now);
      place_ = order_.size() - 1;
      learned_ = 0;
    } else {
      place_ = 0;
    }
  }
  if (order_.empty() || order_[place_] != &now) return nullptr;
  const auto next = std::find_if(order_.begin() + static_cast<std::ptrdiff_t>(place_), order_.end(),
                                 [&](const Use* u) { return u->buckets != now.buckets; });
  return next == order_.end() ? nullptr : *next;
}

// What backward comes to after it.
void Fsdp::expect_backward(Use& now) {
  const auto next = std::find_if(reads_.rbegin(), reads_.rend(), [&](const Use* earlier) {
    return earlier->buckets != now.buckets;
  });
  now.next_in_backward = next == reads_.rend() ? nullptr : *next;
  now.continues_unit = next != reads_.rbegin();
  if (now.read_in_backward) reads_.push_back(&now);
}

void Fsdp::use(const nn::Module& part) {
  if (restored_) return;
  Use& now = use_of(part);
  const bool again = recomputing(), taped = Tape::current() != nullptr,
             recorded = taped && !Tape::counting();
  const Use* next = nullptr;
  if (!again) {
    // A forward without a tape, such as an evaluation, may have come before.
    const bool begins = !current_ || current_taped_ != taped;
    if (begins) reads_.clear();
    next = follow(now, begins);
    if (taped) expect_backward(now);
    leave(now, next);
  }
  arrive(now);
  // A node without inputs and outputs runs in its place of the backward pass.
  if (recorded)
    Tape::record("fsdp", TensorList(), TensorList(),
                 [this, used = &now, continues = now.continues_unit](Backward&) {
                   end_backward(*used, continues);
                 });
  if (again) return prefetch(now, now.next_in_backward);
  if (taped)
    for (const std::size_t b : now.buckets) ++states_[b].open_uses;
  prefetch(now, next);
  current_ = &now;
  current_taped_ = taped;
  current_recorded_ = recorded;
}

// Forward goes on: the parameters in use are freed. Backward will need them from here on.
void Fsdp::leave(const Use& now, const Use* next) {
  const Use* const last = std::exchange(current_, nullptr);
  if (!last) return;
  if (current_recorded_ && Tape::current() && !Tape::counting())
    Tape::record(
        "fsdp", TensorList(), TensorList(),
        [this, last, then = last->next_in_backward](Backward&) { begin_backward(*last, then); });
  // Backward begins with the last unit, and needs the one before it next.
  const bool turns = Tape::current() && !next && order_.size() == learned_;
  for (const std::size_t b : last->buckets)
    if (!turns && !has(now.buckets, b) && !(next && has(next->buckets, b))) free_weights(b);
}

void Fsdp::begin_backward(const Use& now, const Use* next) {
  current_ = nullptr;
  if (restored_) return;
  if (now.read_in_backward) arrive(now);
  prefetch(now, next);
}

// continues: what backward comes to next reads the same unit.
void Fsdp::end_backward(const Use& now, bool continues) {
  const NoGradGuard quiet;
  current_ = nullptr;
  begin_next_sums();
  for (const std::size_t b : now.buckets) {
    State& s = states_[b];
    if (s.open_uses > 0 && --s.open_uses == 0) launch(b);
    if (!continues || s.open_uses == 0) free_weights(b);
  }
  if (continues) continued_ = &now;
}

void Fsdp::arrive(const Use& now) {
  // Backward does not come to what is frozen and was to run again.
  if (const Use* const was = std::exchange(continued_, nullptr))
    for (const std::size_t b : was->buckets)
      if (!has(now.buckets, b)) free_weights(b);
  for (const std::size_t b : now.buckets) start_gather(b);
  for (const std::size_t b : now.buckets) finish_gather(b);
}

void Fsdp::prefetch(const Use& now, const Use* next) {
  const Use* const was = std::exchange(ahead_, next);
  if (was && was != next && was != &now)
    for (const std::size_t b : was->buckets)
      if (!has(now.buckets, b) && !(next && has(next->buckets, b))) free_weights(b);
  if (next && options_.overlap)
    for (const std::size_t b : next->buckets) start_gather(b);
}

void Fsdp::start_gather(std::size_t i) {
  State& s = states_[i];
  Bucket& b = buckets_[i];
  if (s.gathering || !b.param.storage()->released) return;
  const NoGradGuard quiet;
  const CategoryScope category(Category::parameter);
  s.arriving = Tensor::empty(b.param.shape(), b.param.dtype(), b.param.device());
  if (in_gather && gathers_before-- == 0) std::exchange(in_gather, {})();
  s.gather = b.group->all_gather(s.arriving, b.param_slice);
  s.gathering = true;
}

// The block moves into the storage that the model's tensors share, without a new version.
void Fsdp::finish_gather(std::size_t i) {
  State& s = states_[i];
  if (!s.gathering) return;
  s.gather.wait();
  const Tensor& param = buckets_[i].param;
  drop_restorer(param);
  move_block(s.arriving.storage(), param.storage());
  s.arriving = {};
  s.gathering = false;
}

void Fsdp::take_written(std::size_t i) {
  State& s = states_[i];
  const Bucket& b = buckets_[i];
  if (s.whole || b.param.version() == s.version || b.param.storage()->released) return;
  const NoGradGuard quiet;
  const std::int64_t size = b.param_slice.numel();
  b.param_slice.copy_(b.param.alias({size}, {1}, b.group->rank() * size));
  s.version = b.param.version();
}

void Fsdp::free_weights(std::size_t i) {
  if (!states_[i].kept && !restored_) drop(i);
}

void Fsdp::drop(std::size_t i) {
  if (states_[i].whole) return;
  finish_gather(i);
  Storage* const storage = buckets_[i].param.storage();
  if (storage->released) return;
  take_written(i);
  release_until_needed(storage, new Weights(*this, i));
}

void Fsdp::wait() {
  for (std::size_t i = 0; i < states_.size(); ++i) finish_gather(i);
}

void Fsdp::take_written() {
  for (std::size_t i = 0; i < states_.size(); ++i) take_written(i);
}

void Fsdp::restore() {
  if (restored_) return;
  restored_ = true;
  current_ = ahead_ = continued_ = nullptr;
  for (std::size_t i = 0; i < states_.size(); ++i) start_gather(i);
  wait();
}

void Fsdp::release() {
  if (!std::exchange(restored_, false)) return;
  take_written();
  for (std::size_t i = 0; i < states_.size(); ++i) free_weights(i);
}

void Fsdp::begin_update() {
  restored_ = false;
  current_ = ahead_ = continued_ = nullptr;
  for (std::size_t i = 0; i < states_.size(); ++i) drop(i);
}

void Fsdp::updated(std::size_t i) {
  State& s = states_[i];
  if (s.whole) return;
  buckets_[i].param.bump_version();
  s.version = buckets_[i].param.version();
  if (s.kept) start_gather(i);
}

// Called when a backward first writes a gradient of this unit. One other unit may be in flight.
void Fsdp::begin_gradient(std::size_t i) {
  const NoGradGuard quiet;
  if (ended_)
    late_ = message(
        "ddp: no backward must run between that of watch() and finish(), but one came to the "
        "gradient of {}",
        parameters_[buckets_[i].layout.entries[0].parameter].name);
  check(late_.empty(), "{}", late_);
  retire(i);
  const auto unit = [&](std::size_t b) { return buckets_[b].layout.unit; };
  while (!flights_.empty() && unit(flights_.front()) != unit(flights_.back()))
    retire(flights_.front());
  const Bucket& b = buckets_[i];
  const CategoryScope category(Category::gradient);
  const Tensor fresh = Tensor::empty(b.grad.shape(), b.grad.dtype(), b.grad.device());
  drop_restorer(b.grad);
  move_block(fresh.storage(), b.grad.storage());
  for (const BucketEntry& e : b.layout.entries)
    parameters_[e.parameter].tensor.set_main_grad_filled(false);
}

// What no backward has reached holds old values; its place in the sum is 0.
void Fsdp::note_reached(std::size_t i) {
  const Bucket& b = buckets_[i];
  for (std::size_t k = 0; k < b.whole.size(); ++k) {
    const std::size_t p = b.layout.entries[k].parameter;
    if (parameters_[p].tensor.main_grad_filled())
      reached_[p] = 1;
    else
      b.whole[k].zero_();
  }
}

// Every rank launches the same buckets in the same order, whichever of them have gradients here.
void Fsdp::launch(std::size_t i) {
  State& s = states_[i];
  Bucket& b = buckets_[i];
  s.launched = true;
  if (s.whole) return;
  restore_storage(b.grad.storage());
  note_reached(i);
  if (s.summed) {
    const CategoryScope category(Category::gradient);
    s.part = Tensor::empty(b.slice.shape(), b.slice.dtype(), b.slice.device());
  }
  s.sum = b.group->reduce_scatter(s.summed ? s.part : b.slice, b.grad);
  s.summed = s.in_flight = true;
  b.grad.storage()->restorer = new Gradients(*this, i);
  flights_.push_back(i);
  if (last_ && !b.then.empty()) next_sums_.push_back(i);
  if (!options_.overlap) retire(i);
}

void Fsdp::retire(std::size_t i) {
  State& s = states_[i];
  if (!std::exchange(s.in_flight, false)) return;
  s.sum.wait();
  const Bucket& b = buckets_[i];
  if (s.part.defined()) b.slice.add_(s.part);
  s.part = {};
  std::erase(flights_, i);
  empty_storage(b.grad.storage());
}

// Called where all ranks come by in the same order: collectives of different groups may not cross.
void Fsdp::begin_next_sums() {
  for (const std::size_t i : next_sums_) {
    retire(i);
    for (ProcessGroup* const next : buckets_[i].then)
      states_[i].next_sums.push_back(next->all_reduce(buckets_[i].slice));
  }
  next_sums_.clear();
}

std::string Fsdp::finish(std::vector<double>& reached) {
  const NoGradGuard quiet;
  last_ = true;
  ended_ = false;
  std::string late = std::exchange(late_, {});
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].whole) note_reached(i);
    if (!states_[i].launched || (states_[i].open_uses > 0 && late.empty())) launch(i);
  }
  begin_next_sums();
  for (std::size_t i = 0; i < states_.size(); ++i)
    if (!buckets_[i].then.empty() && states_[i].next_sums.empty()) next_sums_.push_back(i);
  begin_next_sums();
  for (std::size_t i = 0; i < states_.size(); ++i) {
    State& s = states_[i];
    retire(i);
    for (Work& next : s.next_sums) next.wait();
    s.next_sums.clear();
    s.launched = s.summed = false;
    s.open_uses = 0;
  }
  last_ = false;
  reached.swap(reached_);
  std::fill(reached_.begin(), reached_.end(), 0);
  return late;
}

}  // namespace weft::distributed
