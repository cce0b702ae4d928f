#pragma once
#include "weft/tests/generated/program.h"

// The ops of random programs by kind; program_ops() returns all of them.
namespace weft::generated {

std::span<const ProgramOp> elementwise_ops();
std::span<const ProgramOp> axis_ops();
std::span<const ProgramOp> view_ops();
std::span<const ProgramOp> fused_ops();
std::span<const ProgramOp> sequence_ops();

using I = const Item&;
using T = const TensorList&;
using A = const Arrays&;
using N = const Number&;

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
inline int axis_of(const Item& item) { return static_cast<int>(item.ints[0]); }

}  // namespace weft::generated
