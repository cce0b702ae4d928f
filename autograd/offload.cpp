#include "weft/autograd/offload.h"

#include <cmath>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/restorer.h"

namespace weft {
namespace {

constinit thread_local Offload* in_use = nullptr;

}  // namespace

/// A tensor that waits outside.
class Offload::Away : public Restorer {
 public:
  Away(Offload& offload, OffloadMemory::Place* place, const Storage& s, int layer)
      : offload_(offload),
        place_(place),
        bytes_(s.bytes),
        category_(s.category),
        layer_(layer),
        number_(all().size()) {
    all().push_back(this);
    offload_.waiting_ += bytes_;
  }
  ~Away() override {
    all()[number_] = nullptr;
    while (!all().empty() && !all().back()) all().pop_back();
    offload_.waiting_ -= bytes_;
    offload_.memory_.give_back(place_);
  }
  void restore(Storage& s) override {
    // Copies run in this order. Those of its own layer have begun, but for the last layer.
    expect();
    offload_.expect(layer_);
    if (layer_ > 0) offload_.expect(layer_ - 1);
    offload_.memory_.load(place_, s, category_);
  }
  void expect() { offload_.memory_.expect(place_, bytes_, category_); }

 private:
  std::vector<Away*>& all() const { return offload_.away_[static_cast<std::size_t>(layer_)]; }

  Offload& offload_;
  OffloadMemory::Place* const place_;
  const std::int64_t bytes_;
  const Category category_;
  const int layer_;
  const std::size_t number_;
};

Offload::Offload(const OffloadOptions& options, Device device)
    : options_(options), memory_(device, options.folder) {
  check(options.fraction >= 0 && options.fraction <= 1,
        "offload: fraction must be in [0, 1], got {}", options.fraction);
}
Offload::~Offload() = default;

Offload* Offload::current() { return in_use; }
Offload::Use::Use(Offload& offload) : previous_(std::exchange(in_use, &offload)) {}
Offload::Use::~Use() { in_use = previous_; }

bool Offload::send_away(Storage& s, int layer) {
  OffloadMemory::Place* const place = memory_.take(s.bytes);
  if (!place) return false;
  memory_.store(place, s);
  if (away_.size() <= static_cast<std::size_t>(layer))
    away_.resize(static_cast<std::size_t>(layer) + 1);
  release_until_needed(&s, new Away(*this, place, s, layer));
  return true;
}

// Backward reads first what was saved last.
void Offload::expect(int layer) {
  const std::vector<Away*>& all = away_[static_cast<std::size_t>(layer)];
  for (auto a = all.rbegin(); a != all.rend(); ++a)
    if (*a) (*a)->expect();
}

OffloadLayers::OffloadLayers(std::int64_t layers)
    : SaveWatch(Offload::current() != nullptr), offload_(Offload::current()) {
  if (!offload_) return;
  chosen_ =
      static_cast<int>(std::llround(offload_->options_.fraction * static_cast<double>(layers)));
  offload_->candidates_.clear();
}

// Also what earlier layers could not give up, such as the stream that this layer has read.
void OffloadLayers::end_layer() {
  if (!offload_) return;
  if (layer_ < chosen_)
    for (; next_ < count(); ++next_)
      if (is_first(next_)) offload_->candidates_.push_back({next_, layer_});
  ++layer_;
  std::erase_if(offload_->candidates_, [&](const Offload::Candidate& c) {
    const Tensor t = seen(c.number);
    if (!t.defined()) return true;
    Storage& s = *t.storage();
    // Their module owns parameters, and counts that an op reads are on the host on any device.
    if (s.bytes < offload_->options_.least_bytes || s.category == Category::parameter ||
        s.device != offload_->memory_.device())
      return true;
    if (s.released || s.deleter || !only_saved(t, 1)) return false;
    if (!offload_->send_away(s, c.layer)) return false;
    forget(t);
    return true;
  });
}

}  // namespace weft
