// The ops of autograd/view.h that split and join tensors.
#include <algorithm>
#include <set>
#include <vector>

#include "weft/autograd/axis.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/numbers.h"

namespace weft {
namespace {

using detail::axis_of;
using detail::part_of;

// The split lengths of one axis; up to 8 without a heap allocation.
class Lengths {
 public:
  void push_back(std::int64_t n) {
    if (size_ < kInline)
      inline_[size_] = n;
    else
      rest_.push_back(n);
    ++size_;
  }
  int size() const { return size_; }
  std::int64_t operator[](int i) const {
    return i < kInline ? inline_[i] : rest_[static_cast<std::size_t>(i - kInline)];
  }

 private:
  static constexpr int kInline = 8;
  std::int64_t inline_[kInline] = {};
  std::vector<std::int64_t> rest_;
  int size_ = 0;
};

void copy_into(const Tensor& source, const Tensor& out) {
  dispatch<cpu::copy, cuda::copy>(source, out);
}

bool any_recording(const TensorList& xs) {
  for (const Tensor& x : xs)
    if (recording(x)) return true;
  return false;
}

TensorList split_by(const Tensor& x, const Lengths& lengths, int dim) {
  TensorList ys;
  std::int64_t at = 0;
  for (int i = 0; i < lengths.size(); ++i) {
    ys.push_back(part_of(x, dim, at, lengths[i]));
    at += lengths[i];
  }
  if (recording(x))
    Tape::record(
        "split", TensorList{x}, ys,
        [lengths, dim, whole = x.shape(), dtype = x.dtype(), device = x.device()](Backward& b) {
          const Tensor zero = Tensor::zeros({1}, dtype, device);
          TensorList parts;
          for (int i = 0; i < lengths.size(); ++i) {
            Shape shape = whole;
            shape[dim] = lengths[i];
            parts.push_back(b.dy(i).defined() ? b.dy(i) : expand(zero.view({}), shape));
          }
          b.add(0, cat(parts, dim));
        });
  return ys;
}

}  // namespace

TensorList split(const Tensor& x, std::int64_t size, int dim) {
  dim = axis_of("split", x, dim);
  check(size >= 1, "split: size must be at least 1, got {}", size);
  Lengths lengths;
  std::int64_t left = x.dim(dim);
  do {
    lengths.push_back(std::min(size, left));
    left -= size;
  } while (left > 0);
  return split_by(x, lengths, dim);
}

TensorList split(const Tensor& x, std::initializer_list<std::int64_t> sizes, int dim) {
  return split(x, std::span(sizes.begin(), sizes.size()), dim);
}

TensorList split(const Tensor& x, std::span<const std::int64_t> sizes, int dim) {
  dim = axis_of("split", x, dim);
  Lengths lengths;
  std::int64_t total = 0, smallest = 0;
  bool fits = true;
  for (const std::int64_t n : sizes) {
    lengths.push_back(n);
    fits = !__builtin_add_overflow(total, n, &total) && fits;
    smallest = std::min(smallest, n);
  }
  check(smallest >= 0, "split: every size must be at least 0, got {}", smallest);
  check(fits, "split: the sizes must add up to {} (axis {} of x {}), got more than fits an integer",
        x.dim(dim), dim, x.shape());
  check(total == x.dim(dim) && lengths.size() > 0,
        "split: the sizes must add up to {} (axis {} of x {}), got {}", x.dim(dim), dim, x.shape(),
        total);
  return split_by(x, lengths, dim);
}

TensorList unbind(const Tensor& x, int dim) {
  dim = axis_of("unbind", x, dim);
  TensorList pieces;
  if (x.dim(dim) == 0) return pieces;
  for (const Tensor& piece : split(x, 1, dim)) pieces.push_back(squeeze(piece, dim));
  return pieces;
}

Tensor cat(const TensorList& xs, int dim) {
  check(!xs.empty(), "cat: needs at least one tensor, got an empty list");
  for (const Tensor& x : xs) detail::check_tensor("cat", "every x", x);
  const Tensor& first = xs[0];
  dim = axis_of("cat", first, dim);
  Shape shape = first.shape();
  Lengths lengths;
  std::int64_t total = 0;
  for (const Tensor& x : xs) {
    check(x.dtype() == first.dtype() && x.device() == first.device(),
          "cat: every tensor must be {} on {}, got {} on {}", first.dtype(), first.device(),
          x.dtype(), x.device());
    Shape like = x.shape();
    if (like.size() == shape.size()) like[dim] = shape[dim];
    check(like == shape, "cat: every tensor must have the shape {} but for axis {}, got {}", shape,
          dim, x.shape());
    lengths.push_back(x.dim(dim));
    check(!__builtin_add_overflow(total, x.dim(dim), &total),
          "cat: the lengths of axis {} must add up to an integer, got more", dim);
  }
  shape[dim] = total;
  Tensor y = Tensor::empty(shape, first.dtype(), first.device());
  std::int64_t at = 0;
  for (const Tensor& x : xs) {
    copy_into(x, part_of(y, dim, at, x.dim(dim)));
    at += x.dim(dim);
  }
  if (any_recording(xs))
    Tape::record("cat", xs, TensorList{y}, [lengths, dim](Backward& b) {
      std::int64_t from = 0;
      for (int i = 0; i < lengths.size(); ++i) {
        if (b.needs(i)) b.add(i, narrow(b.dy(), dim, from, lengths[i]));
        from += lengths[i];
      }
    });
  return y;
}

Tensor stack(const TensorList& xs, int dim) {
  check(!xs.empty(), "stack: needs at least one tensor, got an empty list");
  for (const Tensor& x : xs) detail::check_tensor("stack", "every x", x);
  dim = normalize_dim("stack", dim, xs[0].ndim() + 1);
  TensorList rows;
  for (const Tensor& x : xs) {
    check(x.shape() == xs[0].shape() && x.dtype() == xs[0].dtype() && x.device() == xs[0].device(),
          "stack: every tensor must be {} {} on {}, got {} {} on {}", xs[0].dtype(), xs[0].shape(),
          xs[0].device(), x.dtype(), x.shape(), x.device());
    rows.push_back(unsqueeze(x, dim));
  }
  return cat(rows, dim);
}

Tensor pad(const Tensor& x, int dim, std::int64_t before, std::int64_t after, double value) {
  dim = axis_of("pad", x, dim);
  check(before >= 0 && after >= 0, "pad: counts must be at least 0, got {} before and {} after",
        before, after);
  check_element("pad", x.dtype(), value);
  const std::int64_t n = x.dim(dim);
  Shape shape = x.shape();
  const bool fits = !__builtin_add_overflow(before, n, &shape[dim]) &&
                    !__builtin_add_overflow(shape[dim], after, &shape[dim]);
  check(fits, "pad: too many elements, got {} before and {} after axis {} of x {}", before, after,
        dim, x.shape());
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  dispatch<cpu::fill, cuda::fill>(part_of(y, dim, 0, before), value);
  copy_into(x, part_of(y, dim, before, n));
  dispatch<cpu::fill, cuda::fill>(part_of(y, dim, before + n, after), value);
  if (recording(x))
    Tape::record("pad", {&x}, {&y},
                 [dim, before, n](Backward& b) { b.add(0, narrow(b.dy(), dim, before, n)); });
  return y;
}

Tensor roll(const Tensor& x, std::int64_t shift, int dim) {
  dim = axis_of("roll", x, dim);
  const std::int64_t n = x.dim(dim);
  const std::int64_t turn = n == 0 ? 0 : (shift % n + n) % n;
  Tensor y = empty_like(x);
  copy_into(part_of(x, dim, 0, n - turn), part_of(y, dim, turn, n - turn));
  copy_into(part_of(x, dim, n - turn, turn), part_of(y, dim, 0, turn));
  if (recording(x))
    Tape::record("roll", {&x}, {&y},
                 [turn, dim](Backward& b) { b.add(0, roll(b.dy(), -turn, dim)); });
  return y;
}

TensorList chunk(const Tensor& x, std::int64_t count, int dim) {
  dim = axis_of("chunk", x, dim);
  check(count >= 1, "chunk: count must be at least 1, got {}", count);
  return split(x, std::max<std::int64_t>(1, (x.dim(dim) + count - 1) / count), dim);
}

Tensor flip(const Tensor& x, const Dims& dims) {
  detail::check_tensor("flip", "x", x);
  Tensor y = x;
  std::set<int> flipped;
  for (const int d : dims) {
    const int dim = axis_of("flip", x, d);
    check(flipped.insert(dim).second, "flip: every axis must be given once, got {} twice", d);
    const auto n = static_cast<double>(x.dim(dim));
    y = index_select(y, dim, Tensor::arange(n - 1, -1, -1, DType::i64, x.device()));
  }
  return y.same(x) ? clone(x) : y;
}

Tensor repeat(const Tensor& x, const Shape& times) {
  detail::check_tensor("repeat", "x", x);
  check(times.size() >= x.ndim(), "repeat: x {} needs at least {} numbers, got {}", x.shape(),
        x.ndim(), times);
  Tensor y = x;
  bool copied = false;
  while (y.ndim() < times.size()) y = unsqueeze(y, 0);
  for (int d = 0; d < times.size(); ++d) {
    check(times[d] >= 0, "repeat: every number must be at least 0, got {}", times);
    if (times[d] == 1) continue;
    std::int64_t outer = 1, inner = 1;  // lengths before axis d, and from it on
    for (int i = 0; i < y.ndim(); ++i) (i < d ? outer : inner) *= y.dim(i);
    Shape shape = y.shape();
    shape[d] *= times[d];
    const Tensor copies = expand(reshape(y, {outer, 1, inner}), {outer, times[d], inner});
    y = reshape(contiguous(copies), shape);
    copied = true;
  }
  return copied ? y : clone(y);
}

Tensor repeat_interleave(const Tensor& x, std::int64_t count, int dim) {
  dim = axis_of("repeat_interleave", x, dim);
  check(count >= 0, "repeat_interleave: count must be at least 0, got {}", count);
  if (count == 1) return clone(x);
  std::int64_t outer = 1, inner = 1;  // lengths up to axis dim, and behind it
  for (int i = 0; i < x.ndim(); ++i) (i <= dim ? outer : inner) *= x.dim(i);
  Shape shape = x.shape();
  check(!__builtin_mul_overflow(shape[dim], count, &shape[dim]),
        "repeat_interleave: too many elements, got count {} for x {}", count, x.shape());
  const Tensor copies = expand(reshape(x, {outer, 1, inner}), {outer, count, inner});
  return reshape(contiguous(copies), shape);
}

}  // namespace weft
