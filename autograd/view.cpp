#include "weft/autograd/view.h"

#include <algorithm>

#include "weft/autograd/axis.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/copy.h"

namespace weft {
namespace {

using detail::axis_of;
using detail::check_tensor;
using detail::part_of;

// The shape with -1, if present, replaced by the inferred length.
Shape resolve(const char* op, const Tensor& x, const Shape& shape) {
  check_tensor(op, "x", x);
  Shape out = shape;
  int open = -1;
  std::int64_t known = 1;
  bool fits = true;
  for (int i = 0; i < out.size(); ++i) {
    if (out[i] == -1 && open < 0) {
      open = i;
      continue;
    }
    check(out[i] >= 0, "{}: every axis must be at least 0, one may be -1, got shape {}", op, shape);
    fits = fits && !__builtin_mul_overflow(known, out[i], &known);
  }
  fits = fits && (open < 0 ? known == x.numel() : known > 0 && x.numel() % known == 0);
  check(fits, "{}: shape must have the {} elements of x {}, got {}", op, x.numel(), x.shape(),
        shape);
  if (open >= 0) out[open] = x.numel() / known;
  if (known == 0) checked_numel(op, out);  // the strides of an empty shape must not overflow either
  return out;
}

// Finds strides with which `shape` reads x's memory in x's row-major order: every run of axes of x
// that is contiguous in memory must split into whole axes of `shape`.
bool strides_for(const Tensor& x, const Shape& shape, Shape& strides) {
  strides = contiguous_strides(shape);
  if (x.is_contiguous()) return true;
  Shape run, step;
  for (int i = 0; i < x.ndim(); ++i) {
    const std::int64_t n = x.dim(i), stride = x.strides()[i];
    if (n == 1) continue;
    if (!run.empty() && step.back() == n * stride) {
      run[run.size() - 1] *= n;
      step[step.size() - 1] = stride;
    } else {
      run.push_back(n);
      step.push_back(stride);
    }
  }
  int to = shape.size() - 1;
  for (int r = run.size() - 1; r >= 0; --r) {
    std::int64_t covered = 1;
    for (; to >= 0 && covered < run[r]; --to) {
      strides[to] = step[r] * covered;
      covered *= shape[to];
    }
    if (covered != run[r]) return false;
  }
  return true;
}

Tensor view_as(const char* op, const Tensor& x, const Shape& shape, const Shape& strides) {
  Tensor y = x.alias(shape, strides, 0);
  if (recording(x))
    Tape::record(op, {&x}, {&y},
                 [from = x.shape()](Backward& b) { b.add(0, reshape(b.dy(), from)); });
  return y;
}

Tensor permute_axes(const char* op, const Tensor& x, const Shape& axes) {
  Shape shape = axes, strides = axes, inverse = axes;
  for (int i = 0; i < axes.size(); ++i) {
    const int from = static_cast<int>(axes[i]);
    shape[i] = x.dim(from);
    strides[i] = x.strides()[from];
    inverse[from] = i;
  }
  Tensor y = x.alias(shape, strides, 0);
  if (recording(x))
    Tape::record(op, {&x}, {&y},
                 [op, inverse](Backward& b) { b.add(0, permute_axes(op, b.dy(), inverse)); });
  return y;
}

Tensor strided_slice(const char* op, const Tensor& x, int dim, std::int64_t begin,
                     std::int64_t length, std::int64_t step);

// Backward of a slice, and an op itself: zeros of shape `whole` with dy written to the slice.
Tensor unslice(const char* op, const Tensor& dy, const Shape& whole, int dim, std::int64_t begin,
               std::int64_t step) {
  Tensor dx = Tensor::zeros(whole, dy.dtype(), dy.device());
  const std::int64_t length = dy.dim(dim);
  dispatch<cpu::copy, cuda::copy>(dy, part_of(dx, dim, begin, length, step));
  if (recording(dy))
    Tape::record(op, {&dy}, {&dx}, [op, dim, begin, length, step](Backward& b) {
      b.add(0, strided_slice(op, b.dy(), dim, begin, length, step));
    });
  return dx;
}

Tensor strided_slice(const char* op, const Tensor& x, int dim, std::int64_t begin,
                     std::int64_t length, std::int64_t step) {
  Tensor y = part_of(x, dim, begin, length, step);
  if (recording(x))
    Tape::record(op, {&x}, {&y}, [op, whole = x.shape(), dim, begin, step](Backward& b) {
      b.add(0, unslice(op, b.dy(), whole, dim, begin, step));
    });
  return y;
}

}  // namespace

Tensor view(const Tensor& x, const Shape& shape) {
  const Shape to = resolve("view", x, shape);
  Shape strides;
  check(strides_for(x, to, strides),
        "view: x of shape {} and strides {} cannot be seen as {} without a copy; use reshape",
        x.shape(), x.strides(), to);
  return view_as("view", x, to, strides);
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  const Shape to = resolve("reshape", x, shape);
  Shape strides;
  if (strides_for(x, to, strides)) return view_as("reshape", x, to, strides);
  return view_as("reshape", contiguous(x), to, contiguous_strides(to));
}

Tensor permute(const Tensor& x, const Dims& axes) {
  check_tensor("permute", "x", x);
  Shape order;
  unsigned seen = 0;
  for (const int a : axes) {
    const int n = a < 0 ? a + x.ndim() : a;
    order.push_back(n);
    if (n >= 0 && n < x.ndim()) seen |= 1u << n;
  }
  check(order.size() == x.ndim() && seen + 1 == 1u << x.ndim(),
        "permute: axes must name each of the {} axes of x once, got {}", x.ndim(),
        Shape(axes.begin(), axes.end()));
  return permute_axes("permute", x, order);
}

Tensor transpose(const Tensor& x, int a, int b) {
  a = axis_of("transpose", x, a);
  b = axis_of("transpose", x, b);
  Shape order;
  for (int i = 0; i < x.ndim(); ++i) order.push_back(i == a ? b : i == b ? a : i);
  return permute_axes("transpose", x, order);
}

Tensor movedim(const Tensor& x, int from, int to) {
  from = axis_of("movedim", x, from);
  to = axis_of("movedim", x, to);
  Shape order;
  for (int i = 0; i < x.ndim(); ++i) order.push_back(i);
  order.erase(from);
  order.insert(to, from);
  return permute_axes("movedim", x, order);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  check_tensor("expand", "x", x);
  const int added = shape.size() - x.ndim();
  Shape to = shape, strides = Shape::filled(shape.size(), 0);
  bool fits = added >= 0;
  for (int i = 0; fits && i < shape.size(); ++i) {
    if (i < added) {
      fits = to[i] >= 0;
      continue;
    }
    const std::int64_t n = x.dim(i - added);
    if (to[i] == -1) to[i] = n;
    if (to[i] == n)
      strides[i] = x.strides()[i - added];
    else
      fits = n == 1 && to[i] >= 0;
  }
  check(fits, "expand: x must broadcast to {}, got shape {}", shape, x.shape());
  checked_numel("expand", to);
  Tensor y = x.alias(to, strides, 0);
  if (recording(x))
    Tape::record("expand", {&x}, {&y},
                 [from = x.shape()](Backward& b) { b.add(0, sum_to(b.dy(), from)); });
  return y;
}

Tensor slice(const Tensor& x, int dim, std::int64_t begin, std::int64_t end, std::int64_t step) {
  dim = axis_of("slice", x, dim);
  check(step >= 1, "slice: step must be at least 1, got {}", step);
  const std::int64_t n = x.dim(dim);
  begin = std::clamp<std::int64_t>(begin < 0 ? begin + n : begin, 0, n);
  end = std::clamp<std::int64_t>(end < 0 ? end + n : end, begin, n);
  return strided_slice("slice", x, dim, begin, end == begin ? 0 : (end - begin - 1) / step + 1,
                       step);
}

Tensor narrow(const Tensor& x, int dim, std::int64_t begin, std::int64_t length) {
  dim = axis_of("narrow", x, dim);
  const std::int64_t n = x.dim(dim), from = begin < 0 ? begin + n : begin;
  check(length >= 0 && from >= 0 && from <= n && length <= n - from,
        "narrow: begin {} and length {} must stay inside axis {} of length {}", begin, length, dim,
        n);
  return strided_slice("narrow", x, dim, from, length, 1);
}

Tensor select(const Tensor& x, int dim, std::int64_t index) {
  dim = axis_of("select", x, dim);
  const std::int64_t n = x.dim(dim);
  check(index >= -n && index < n, "select: index must be in [{}, {}), got {}", -n, n, index);
  return squeeze(strided_slice("select", x, dim, index < 0 ? index + n : index, 1, 1), dim);
}

Tensor squeeze(const Tensor& x, int dim) {
  dim = axis_of("squeeze", x, dim);
  check(x.dim(dim) == 1, "squeeze: axis {} must have length 1, got shape {}", dim, x.shape());
  Shape shape = x.shape(), strides = x.strides();
  shape.erase(dim);
  strides.erase(dim);
  return view_as("squeeze", x, shape, strides);
}

Tensor unsqueeze(const Tensor& x, int dim) {
  check_tensor("unsqueeze", "x", x);
  dim = normalize_dim("unsqueeze", dim, x.ndim() + 1);
  Shape shape = x.shape(), strides = x.strides();
  const std::int64_t step = dim < x.ndim() ? x.dim(dim) * x.strides()[dim] : 1;
  shape.insert(dim, 1);
  strides.insert(dim, step);
  return view_as("unsqueeze", x, shape, strides);
}

Tensor flatten(const Tensor& x, int first, int last) {
  check_tensor("flatten", "x", x);
  first = normalize_dim("flatten", first, x.ndim());
  last = normalize_dim("flatten", last, x.ndim());
  check(first <= last, "flatten: first must not come after last {}, got {}", last, first);
  if (x.ndim() == 0) return reshape(x, {1});
  Shape shape(x.shape().begin(), x.shape().begin() + first);
  std::int64_t merged = 1;
  for (int i = first; i <= last; ++i) merged *= x.dim(i);
  shape.push_back(merged);
  for (int i = last + 1; i < x.ndim(); ++i) shape.push_back(x.dim(i));
  return reshape(x, shape);
}

}  // namespace weft
