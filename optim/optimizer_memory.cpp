// Where the numbers of an optimizer are: parameters that are stored as master weights alone, and
// states that wait in pinned memory between updates.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

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

// Bytes of the states of a group of parameters, but for its last parameter.
constexpr std::int64_t kGroupBytes = 16 << 20;

}  // namespace

/// Brings a state back from where it waits.
class Optimizer::FromOutside : public Restorer {
 public:
  FromOutside(OffloadMemory& memory, OffloadMemory::Place* place)
      : memory_(memory), place_(place) {}
  ~FromOutside() override { memory_.give_back(place_); }
  void restore(Storage& s) override { memory_.load(place_, s, Category::optimizer); }
  /// Begins to bring it back, for restore_storage() later.
  static void expect(const Storage& s) {
    if (auto* const from = dynamic_cast<FromOutside*>(s.restorer))
      from->memory_.expect(from->place_, s.bytes, Category::optimizer);
  }
  void wait_stored(Storage& s) const { memory_.wait_stored(place_, s); }

 private:
  OffloadMemory& memory_;
  OffloadMemory::Place* const place_;
};

/// States that are being copied out. If they are never released, those on the GPU stay.
struct Optimizer::Leaving {
  Storage* state;
  std::unique_ptr<FromOutside> from;

  /// Once the copy has ended, in the order of the current stream.
  void release_in_order() {
    from->wait_stored(*state);
    release();
  }
  void release() { release_until_needed(state, from.release()); }
};

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

void Optimizer::copy_out(const Tensor& state, std::vector<Leaving>& leaving) const {
  if (!outside_ || !state.defined()) return;
  Storage& s = *state.storage();
  if (s.released || s.bytes == 0) return;
  OffloadMemory::Place* const place = outside_->take(s.bytes);
  if (!place) return;
  leaving.push_back({&s, std::make_unique<FromOutside>(*outside_, place)});
  outside_->store(place, s);
}

void Optimizer::send_away(const Tensor& state) const {
  std::vector<Leaving> leaving;
  copy_out(state, leaving);
  for (Leaving& l : leaving) l.release_in_order();
}

void Optimizer::send_away(std::size_t begin, std::size_t end) const {
  if (outside_) each_state(begin, end, [this](const Tensor& t) { send_away(t); });
}

// While a group is updated, the next one arrives and the one before leaves: three are on the GPU.
// The blocks of the one that has left are those of the one that arrives next, in the order of the
// stream: a host far ahead of the GPU takes no others.
void Optimizer::update_in_groups(const double* grad_scale, std::span<const std::size_t> ends,
                                 const std::function<void(std::size_t portion)>& after) {
  const auto group_from = [&](std::size_t i) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), i);
    for (std::int64_t bytes = 0; end != ends.end() && i < *end && bytes < kGroupBytes; ++i)
      each_state(i, i + 1, [&](const Tensor& t) { bytes += t.storage()->bytes; });
    return i;
  };
  const auto expect = [this](std::size_t from, std::size_t to) {
    each_state(from, to, [](const Tensor& t) { FromOutside::expect(*t.storage()); });
  };
  std::vector<Leaving> before, now;
  std::size_t begin = 0, stop = group_from(begin);
  expect(begin, stop);
  for (std::size_t k = 0; k < ends.size(); ++k) {
    while (begin < ends[k]) {
      const std::size_t next = group_from(stop);
      expect(stop, next);
      each_state(begin, stop, [](const Tensor& t) { restore_storage(t.storage()); });
      update(grad_scale, begin, stop);
      each_state(begin, stop, [&](const Tensor& t) { copy_out(t, now); });
      for (Leaving& l : before) l.release_in_order();
      before.clear();
      before.swap(now);
      begin = std::exchange(stop, next);
    }
    after(k);
  }
  for (Leaving& l : before) l.release();  // what follows need not wait for them
}

}  // namespace weft::optim
