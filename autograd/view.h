#pragma once
#include "weft/core/tensor.h"

namespace weft {

// Ops that rearrange. All of them take any dtype, run on cpu, cuda and meta, save no tensor, and
// can be differentiated any number of times. "View" says that the result shares storage with x, so
// an in-place write to one shows in the other. Axes may be negative: -1 is the last one.

/// View of x with another shape; one axis of `shape` may be -1 and is worked out.
///
/// Shapes   x (...)  ->  shape, with as many elements
/// Throws   Error when the sizes do not fit, or the strides do not allow it without a copy (reshape
///          makes one)
Tensor view(const Tensor& x, const Shape& shape);
/// view() where the strides allow it, else a view of a contiguous copy.
Tensor reshape(const Tensor& x, const Shape& shape);
/// View with the axes in the order axes[0], axes[1], ...
///
/// Shapes   x (d0 ... dn)  ->  (d[axes[0]] ... d[axes[n]])
/// Throws   Error unless `axes` names every axis once
Tensor permute(const Tensor& x, std::initializer_list<int> axes);
/// View with axes a and b swapped.
Tensor transpose(const Tensor& x, int a, int b);
/// View that repeats axes of length 1 (stride 0) and adds axes in front; -1 keeps an axis.
///
/// Shapes   x broadcastable to shape  ->  shape
/// Throws   Error when x does not broadcast to `shape`
Tensor expand(const Tensor& x, const Shape& shape);
/// View of the elements begin, begin + step, ... below end of one axis. Negative bounds count from
/// the end, and bounds outside the axis are moved to its ends.
///
/// Shapes   x (... n ...)  ->  (... ceil((end - begin) / step) ...)
/// Throws   Error on step < 1
Tensor slice(const Tensor& x, int dim, std::int64_t begin, std::int64_t end = kEnd,
             std::int64_t step = 1);
/// View of `length` elements of one axis from `begin` on (negative: counted from the end).
///
/// Shapes   x (... n ...)  ->  (... length ...)
/// Throws   Error when the range leaves the axis
Tensor narrow(const Tensor& x, int dim, std::int64_t begin, std::int64_t length);
/// View of one position of an axis, which disappears.
///
/// Shapes   x (... n ...)  ->  (... ...)
/// Throws   Error when index is outside [-n, n)
Tensor select(const Tensor& x, int dim, std::int64_t index);
/// View without axis dim.
///
/// Throws   Error unless that axis has length 1
Tensor squeeze(const Tensor& x, int dim);
/// View with a new axis of length 1 that becomes axis dim of the result.
Tensor unsqueeze(const Tensor& x, int dim);
/// reshape() that merges the axes first ... last, both included; a scalar becomes (1).
Tensor flatten(const Tensor& x, int first = 0, int last = -1);

/// Views of consecutive pieces of `size` along dim; the last piece may be shorter. Recorded as one
/// op: its backward writes the gradient of x once, however many pieces there are.
///
/// Shapes   x (... n ...)  ->  ceil(n / size) times (... size ...); one empty piece for n = 0
/// Throws   Error on size < 1
TensorList split(const Tensor& x, std::int64_t size, int dim = 0);
/// Views of consecutive pieces of the given lengths.
///
/// Shapes   x (... n ...)  ->  (... sizes[i] ...)
/// Throws   Error unless the sizes are at least 0 and add up to n
TensorList split(const Tensor& x, std::initializer_list<std::int64_t> sizes, int dim = 0);
/// The tensors one after the other along an existing axis.
///
/// Shapes   xs (... n_i ...), equal in every other axis  ->  (... n_0 + n_1 + ... ...)
/// Throws   Error on an empty list, on scalars, and on tensors of different dtype, device or shape
Tensor cat(const TensorList& xs, int dim = 0);
/// The tensors one after the other along a new axis dim.
///
/// Shapes   n times (d0 ... dm)  ->  (d0 ... n ... dm)
/// Throws   Error on an empty list and on tensors of different dtype, device or shape
Tensor stack(const TensorList& xs, int dim = 0);
/// x with `before` and `after` elements of `value` added at the ends of one axis.
///
/// Shapes   x (... n ...)  ->  (... before + n + after ...)
/// Throws   Error on a negative count
Tensor pad(const Tensor& x, int dim, std::int64_t before, std::int64_t after, double value = 0);
/// x turned along one axis: element i goes to (i + shift) mod n.
Tensor roll(const Tensor& x, std::int64_t shift, int dim);

/// The pieces of split() for `count` of them: all of one length, but for the last one.
TensorList chunk(const Tensor& x, std::int64_t count, int dim = 0);
/// x with the order of some axes turned round.
///
/// Throws   Error on an axis out of range
Tensor flip(const Tensor& x, std::initializer_list<int> dims);
inline Tensor flip(const Tensor& x, int dim) { return flip(x, {dim}); }
/// times[i] copies of x along axis i, one after the other. More numbers than axes add axes in
/// front.
///
/// Shapes   x (d0 ... dn)  ->  (times[0] d0 ... times[n] dn)
/// Throws   Error on fewer numbers than axes, and on a negative one
Tensor repeat(const Tensor& x, const Shape& times);

/// x itself when it is row-contiguous, else a copy that is.
Tensor contiguous(const Tensor& x);
/// A row-contiguous copy.
Tensor clone(const Tensor& x);
/// x converted; x itself when the dtype is equal. Floating results are rounded once, to nearest
/// even; integers are truncated, and bool is "not 0".
///
/// The gradient is converted back. A result that is not f32, f64 or bf16 carries no gradient.
Tensor cast(const Tensor& x, DType dtype);
/// x on another device; x itself when it is there. Moving to meta keeps shape and dtype and drops
/// the values, and the gradient with them.
///
/// Copying from a GPU waits until the values are there; the other way and between GPUs it does not.
///
/// Throws   Error from meta to a real device, and for a GPU that cannot be used
Tensor to_device(const Tensor& x, Device device);

}  // namespace weft
