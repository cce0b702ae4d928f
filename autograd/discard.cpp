#include "weft/autograd/discard.h"

namespace weft {
namespace {

bool is_whole(const Tensor& y) {
  return y.is_contiguous() && y.offset() == 0 &&
         y.numel() * static_cast<std::int64_t>(size_of(y.dtype())) == y.storage()->bytes;
}

}  // namespace

bool DiscardScope::releasable(const Tensor& y) const {
  const Storage& s = *y.storage();
  return !s.released && !s.shared_empty && !s.deleter && is_whole(y) && only_saved(y, 1);
}

void DiscardScope::fill(Storage& s, const Tensor& y, const Shape& shape) {
  check(y.shape() == shape && is_whole(y) && y.storage()->refs.load() == 1,
        "discard: the second pass must return a new tensor of shape {}, got {}", shape, y.shape());
  move_block(y.storage(), &s);
}

}  // namespace weft
