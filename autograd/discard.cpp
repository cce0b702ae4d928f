#include "weft/autograd/discard.h"

#include <vector>

namespace weft {
namespace {

// Found by the number of the recorded y, since a handle would own its memory.
struct Made {
  std::uint64_t id;
  std::uint32_t version;
  Tensor kept;
  std::unique_ptr<MadeFrom> how;
};
thread_local std::vector<Made> all_made;

bool is_whole(const Tensor& y) {
  return y.is_contiguous() && y.offset() == 0 &&
         y.numel() * static_cast<std::int64_t>(size_of(y.dtype())) == y.storage()->bytes;
}

bool has_memory(const Tensor& y) {
  const Storage& s = *y.storage();
  return !s.released && !s.shared_empty && !s.deleter && is_whole(y);
}

}  // namespace

constinit thread_local int DiscardScope::open_ = 0;

bool DiscardScope::releasable(const Tensor& y) const { return has_memory(y) && only_saved(y, 1); }

void DiscardScope::keeps_made(const Tensor& y, const Tensor& made, std::unique_ptr<MadeFrom> how) {
  if (!y.impl()->leaf) all_made.push_back({y.impl()->tape_id, y.version(), made, std::move(how)});
}

int DiscardScope::next_made(const Tensor& y, int i) const {
  for (; i < std::ssize(all_made); ++i) {
    const Made& m = all_made[static_cast<std::size_t>(i)];
    if (m.how && m.id == y.impl()->tape_id && m.version == y.version() && has_memory(m.kept) &&
        only_saved(m.kept, 1))
      return i;
  }
  return -1;
}

void DiscardScope::release_made(int i, std::unique_ptr<Recomputation> y) {
  Made& m = all_made[static_cast<std::size_t>(i)];
  m.how->y_ = std::move(y);
  forget(m.kept);
  release_until_needed(m.kept.storage(), m.how.release());
}

void DiscardScope::drop_made() { all_made.clear(); }

void DiscardScope::fill(Storage& s, const Tensor& y, const Shape& shape) {
  check(y.shape() == shape && is_whole(y) && y.storage()->refs.load() == 1,
        "discard: the second pass must return a new tensor of shape {}, got {}", shape, y.shape());
  move_block(y.storage(), &s);
}

void MadeFrom::restore(Storage& s) {
  const NoGradGuard off;
  const CategoryScope scope(s.category);
  const Tensor made = make(y_->compute());
  DiscardScope::fill(s, made, made.shape());
}

}  // namespace weft
