// Where the numbers of an optimizer are: parameters that are stored as master weights alone, and
// states that wait in pinned memory between updates.
#include <algorithm>
#include <utility>

#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/restorer.h"
#include "weft/optim/optimizer.h"
#include "weft/optim/state_memory.h"

namespace weft::optim {
namespace {

/// Rounds a master weight to its parameter.
class FromMaster : public Restorer {
 public:
  FromMaster(const Tensor& master, DType dtype) : master_(master), dtype_(dtype) {}
  void restore(Storage& s) override {
    const CategoryScope category(Category::parameter);
    const RestoredScope master(master_.storage());
    const Tensor values = master_.to(dtype_);
    move_block(values.storage(), &s);
  }

 private:
  const Tensor master_;
  const DType dtype_;
};

/// Brings a state back from where it waits.
class FromOutside : public Restorer {
 public:
  FromOutside(OffloadMemory& memory, OffloadMemory::Place* place)
      : memory_(memory), place_(place) {}
  ~FromOutside() override { memory_.give_back(place_); }
  void restore(Storage& s) override { memory_.load(place_, s, Category::optimizer); }

 private:
  OffloadMemory& memory_;
  OffloadMemory::Place* const place_;
};

// Bytes of states that are on the GPU at once, but for one tensor and the group after it.
constexpr std::int64_t kGroupBytes = 16 << 20;

}  // namespace

void Optimizer::store_as_masters(const std::vector<Tensor>& parameters) {
  reset_stale_masters();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i].tensor;
    if (std::none_of(parameters.begin(), parameters.end(),
                     [&](const Tensor& t) { return t.impl() == p.impl(); }))
      continue;
    const char* name = parameters_[i].name.c_str();
    check(has_master(i) && master_form_ == MasterWeights::f32,
          "optimizer: {} needs an f32 master weight to be stored as one", name);
    const auto bytes = p.numel() * static_cast<std::int64_t>(size_of(p.dtype()));
    check(p.is_contiguous() && p.storage()->bytes == bytes,
          "optimizer: {} must have memory of its own to be stored as a master weight, got {} of {} "
          "bytes",
          name, bytes, p.storage()->bytes);
    any_alone_ |= masters_[i].alone = bytes > 0;
  }
  release_alone();
}

// The values come from masters that may be in a file that ends with the optimizer.
Optimizer::~Optimizer() {
  for (std::size_t i = 0; any_alone_ && i < masters_.size(); ++i) try {
      if (masters_[i].alone) restore_storage(parameters_[i].tensor.storage());
    } catch (const Error&) {
      // Whoever reads the parameter gets an error.
    }
}

void Optimizer::restore_values() {
  for (std::size_t i = 0; any_alone_ && i < masters_.size(); ++i)
    if (masters_[i].alone) restore_storage(parameters_[i].tensor.storage());
}

void Optimizer::release_values() {
  if (!any_alone_) return;
  reset_stale_masters();
  release_alone();
}

// Call it when the master weights are current.
void Optimizer::release_alone() {
  for (std::size_t i = 0; any_alone_ && i < masters_.size(); ++i) {
    const Tensor& p = parameters_[i].tensor;
    if (masters_[i].alone && !p.storage()->released)
      release_until_needed(p.storage(), new FromMaster(masters_[i].kept, p.dtype()));
  }
}

template <class F>
void Optimizer::each_state(std::size_t begin, std::size_t end, const F& f) const {
  for (std::size_t i = begin; i < end; ++i) {
    for (const State& s : states_) f(s.tensors[i]);
    if (has_master(i)) f(masters_[i].kept);
  }
}

void Optimizer::send_away(const Tensor& state) const {
  if (!outside_ || !state.defined()) return;
  Storage& s = *state.storage();
  if (s.released || s.bytes == 0) return;
  OffloadMemory::Place* const place = outside_->take(s.bytes);
  if (!place) return;
  outside_->store(place, s);
  release_until_needed(&s, new FromOutside(*outside_, place));
}

void Optimizer::send_away(std::size_t begin, std::size_t end) const {
  if (outside_) each_state(begin, end, [this](const Tensor& t) { send_away(t); });
}

void Optimizer::bring_back(std::size_t begin, std::size_t end) const {
  each_state(begin, end, [](const Tensor& t) { restore_storage(t.storage()); });
}

// While a group is updated, the next one is on its way.
void Optimizer::update_in_groups(const double* grad_scale, std::size_t begin, std::size_t end) {
  if (!outside_) return update(grad_scale, begin, end);
  const auto group_from = [&](std::size_t i) {
    for (std::int64_t bytes = 0; i < end && bytes < kGroupBytes; ++i)
      each_state(i, i + 1, [&](const Tensor& t) { bytes += t.storage()->bytes; });
    return i;
  };
  std::size_t stop = group_from(begin);
  bring_back(begin, stop);
  while (begin < end) {
    const std::size_t next = group_from(stop);
    bring_back(stop, next);
    update(grad_scale, begin, stop);
    send_away(begin, stop);
    begin = std::exchange(stop, next);
  }
}

}  // namespace weft::optim
