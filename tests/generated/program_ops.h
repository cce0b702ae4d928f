#pragma once
#include "weft/tests/generated/program.h"

// The ops of random programs by kind; program_ops() returns all of them.
namespace weft::generated {

std::span<const ProgramOp> elementwise_ops();
std::span<const ProgramOp> unary_ops();
std::span<const ProgramOp> mask_ops();
std::span<const ProgramOp> member_ops();
std::span<const ProgramOp> axis_ops();
std::span<const ProgramOp> index_ops();
std::span<const ProgramOp> view_ops();
std::span<const ProgramOp> join_ops();
std::span<const ProgramOp> fused_ops();
std::span<const ProgramOp> loss_ops();
std::span<const ProgramOp> sequence_ops();
std::span<const ProgramOp> recurrent_ops();
std::span<const ProgramOp> rope_ops();
std::span<const ProgramOp> expert_ops();
std::span<const ProgramOp> token_ops();
std::span<const ProgramOp> capacity_ops();

using I = const Item&;
using T = const TensorList&;
using A = const Arrays&;
using N = const Number&;

// Makers.

/// One operand of any shape.
inline bool one(Maker& m, Item& item) {
  item.in = {m.any()};
  return true;
}
/// One operand and one of its axes, in ints[0].
inline bool one_axis(Maker& m, Item& item) {
  const int x = m.any(1);
  if (x < 0) return false;
  item.in = {x};
  item.ints = {m.axis(x)};
  return true;
}
inline int axis_of(I item) { return static_cast<int>(item.ints[0]); }
/// The same, and keepdim in reals[0]; the axis is not empty.
bool kept_axis(Maker& m, Item& item);
inline bool kept(I item) { return item.reals[0] == 1; }
/// Two operands that broadcast.
bool pair(Maker& m, Item& item);
/// The same, where the result has the shape of the first.
bool broadcast_second(Maker& m, Item& item);
/// Two operands of one shape.
bool same_shapes(Maker& m, Item& item);
/// One operand and a number in reals[0]; ints[0]: which of two forms.
bool number(Maker& m, Item& item);
/// One operand and the place of a new axis of it.
bool new_axis(Maker& m, Item& item);
/// A number that every dtype represents.
double dyadic(Maker& m);
/// Indices into an axis of length n, appended to ints.
bool draw_indices(Maker& m, Item& item, std::int64_t count, std::int64_t n);

// What Weft and the interpreter both need of an item.

/// ints from `from` on as an i64 tensor on the device of x.
Tensor int_tensor(I item, std::size_t from, const Shape& shape, const Tensor& x);
Shape given_shape(I item);
/// The first elements of x, row-major, with another shape.
Tensor flat_part(const Tensor& x, const Shape& shape);
Array flat_part(const Array& x, const Shape& shape);

// Parts of the interpreter.

inline Number sum_of(N a, N b) { return a + b; }
inline Number difference(N a, N b) { return a - b; }
inline Number product_of(N a, N b) { return a * b; }
inline Number quotient(N a, N b) { return a / b; }

template <Number (*f)(N)>
Array unary(I, A in) {
  return map(*in[0], f);
}
template <Number (*f)(N, N)>
Array two(I, A in) {
  return binary(*in[0], *in[1], f);
}
Array plus(const Array& a, const Array& b);
Array times(const Array& a, const Array& b);
Array broadcast_to(const Array& x, const Shape& shape);
/// x weight^T.
Array linear_exact(const Array& x, const Array& weight);
Number average(const Row& row);
Number log_sum_exp(const Row& row);

}  // namespace weft::generated
