#pragma once
#include "weft/core/tensor.h"

namespace weft {

// Ops that rearrange elements. All take any dtype, run on cpu, cuda and meta, save no tensor, and
// are differentiable any number of times. A view shares storage with x: an in-place write to one
// changes the other. Axes may be negative: -1 is the last one.

/// View of x with another shape; one axis of `shape` may be -1 and is inferred.
///
/// Shapes   x (...)  ->  shape, with the same number of elements
/// Throws   Error when the sizes do not match, or the strides require a copy (use reshape then)
Tensor view(const Tensor& x, const Shape& shape);
/// view() if the strides allow it, else a view of a contiguous copy.
Tensor reshape(const Tensor& x, const Shape& shape);
/// View with the axes in the order axes[0], axes[1], ...
///
/// Shapes   x (d0 ... dn)  ->  (d[axes[0]] ... d[axes[n]])
/// Throws   Error unless `axes` contains every axis once
Tensor permute(const Tensor& x, const Dims& axes);
/// View with axis `from` moved to be axis `to` of the result; the others keep their order.
///
/// Throws   Error on an axis out of range
Tensor movedim(const Tensor& x, int from, int to);
/// View with axes a and b swapped.
Tensor transpose(const Tensor& x, int a, int b);
/// View that broadcasts axes of length 1 (stride 0) and adds leading axes; -1 keeps an axis.
///
/// Shapes   x broadcastable to shape  ->  shape
/// Throws   Error when x does not broadcast to `shape`
Tensor expand(const Tensor& x, const Shape& shape);
/// View of elements begin, begin + step, ... below `end` along one axis. Negative bounds count from
/// the end; bounds outside the axis are clamped.
///
/// Shapes   x (... n ...)  ->  (... ceil((end - begin) / step) ...)
/// Throws   Error on step < 1
Tensor slice(const Tensor& x, int dim, std::int64_t begin, std::int64_t end = kEnd,
             std::int64_t step = 1);
/// View of `length` elements of one axis from `begin` on (negative: counts from the end).
///
/// Shapes   x (... n ...)  ->  (... length ...)
/// Throws   Error when the range leaves the axis
Tensor narrow(const Tensor& x, int dim, std::int64_t begin, std::int64_t length);
/// View of one position of an axis; the axis is removed.
///
/// Shapes   x (... n ...)  ->  (... ...)
/// Throws   Error when index is outside [-n, n)
Tensor select(const Tensor& x, int dim, std::int64_t index);
/// View without axis `dim`.
///
/// Throws   Error unless that axis has length 1
Tensor squeeze(const Tensor& x, int dim);
/// View with a new axis of length 1, which is axis `dim` of the result.
Tensor unsqueeze(const Tensor& x, int dim);
/// reshape() that merges the axes first ... last, inclusive; a scalar becomes (1).
Tensor flatten(const Tensor& x, int first = 0, int last = -1);

/// Views of consecutive slices of length `size` along dim; the last one may be shorter. Recorded as
/// one op: backward writes the gradient of x once, for any number of slices.
///
/// Shapes   x (... n ...)  ->  ceil(n / size) times (... size ...); one empty slice for n = 0
/// Throws   Error on size < 1
TensorList split(const Tensor& x, std::int64_t size, int dim = 0);
/// Views of consecutive slices of the given lengths.
///
/// Shapes   x (... n ...)  ->  (... sizes[i] ...)
/// Throws   Error unless the sizes are at least 0 and add up to n
TensorList split(const Tensor& x, std::initializer_list<std::int64_t> sizes, int dim = 0);
TensorList split(const Tensor& x, std::span<const std::int64_t> sizes, int dim = 0);
/// Views of every position of an axis, which is removed. Backward writes the gradient of x once.
///
/// Shapes   x (... n ...)  ->  n times (... ...)
/// Throws   Error on a scalar
TensorList unbind(const Tensor& x, int dim = 0);
/// Concatenates tensors along an existing axis.
///
/// Shapes   xs (... n_i ...), equal in every other axis  ->  (... n_0 + n_1 + ... ...)
/// Throws   Error on an empty list, on scalars, and on tensors whose dtype, device or shape differ
Tensor cat(const TensorList& xs, int dim = 0);
/// Stacks tensors along a new axis dim.
///
/// Shapes   n times (d0 ... dm)  ->  (d0 ... n ... dm)
/// Throws   Error on an empty list and on tensors whose dtype, device or shape differ
Tensor stack(const TensorList& xs, int dim = 0);
/// Pads one axis with `before` and `after` elements of `value` at its ends.
///
/// Shapes   x (... n ...)  ->  (... before + n + after ...)
/// Throws   Error on a negative count
Tensor pad(const Tensor& x, int dim, std::int64_t before, std::int64_t after, double value = 0);
/// Rotates x along one axis: element i goes to (i + shift) mod n.
Tensor roll(const Tensor& x, std::int64_t shift, int dim);

/// The pieces of split() for `count` of them: all of one length, but for the last one.
TensorList chunk(const Tensor& x, std::int64_t count, int dim = 0);
/// x with the order of some axes reversed.
///
/// Throws   Error on an axis out of range or given twice
Tensor flip(const Tensor& x, const Dims& dims);
/// times[i] copies of x along axis i, one after the other. More numbers than axes add axes in
/// front.
///
/// Shapes   x (d0 ... dn)  ->  (times[0] d0 ... times[n] dn)
/// Throws   Error on fewer numbers than axes, and on a negative one
Tensor repeat(const Tensor& x, const Shape& times);
/// `count` copies of each position of an axis, side by side.
///
/// Shapes   x (... n ...)  ->  (... n count ...)
/// Throws   Error on a negative count, and on a scalar
Tensor repeat_interleave(const Tensor& x, std::int64_t count, int dim);

/// x itself if it is row-contiguous, else a row-contiguous copy.
Tensor contiguous(const Tensor& x);
/// A row-contiguous copy.
Tensor clone(const Tensor& x);
/// Converts x; returns x itself if the dtype is equal. Floating results are rounded once, to
/// nearest even; bool is "not 0". Integers are truncated: numbers outside of the dtype's range give
/// its nearest, NaN 0. Integers wrap around to narrower ones.
///
/// The gradient is converted back. Only f32, f64, bf16 and f16 results carry a gradient.
Tensor cast(const Tensor& x, DType dtype);
/// Copies x to another device; returns x itself if it is already there. A copy to meta keeps shape
/// and dtype and drops the values and the gradient.
///
/// A copy from a GPU waits for the values; copies to a GPU and between GPUs do not wait.
///
/// Throws   Error from meta to a real device, and for a GPU that is not usable
Tensor to_device(const Tensor& x, Device device);

}  // namespace weft
