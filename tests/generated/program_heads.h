#pragma once
#include <algorithm>

#include "weft/autograd/view.h"
#include "weft/tests/generated/program_ops.h"

// What the ops over the tokens of a sequence share. An existing item is flattened to their first
// operand, and cut, so that every shape can reach them.
namespace weft::generated {

// ints: batch, tokens, heads, width of the first operand.
inline bool heads(Maker& m, Item& item, std::int64_t heads_multiple, bool even) {
  const int x = m.any();
  const std::int64_t count = m.shape(x).numel();
  const std::int64_t d = (1 + m.rng.below(3)) * (even ? 2 : 1);
  const std::int64_t h = (1 + m.rng.below(2)) * heads_multiple;
  const std::int64_t b = 1 + m.rng.below(2);
  item.in = {x};
  item.ints = {b, std::min<std::int64_t>(count / (d * h * b), 8), h, d};
  return item.ints[1] > 0;
}
inline Shape head_shape(I item) { return {item.ints[0], item.ints[1], item.ints[2], item.ints[3]}; }
// (B, T, H, D) is also made from (B, H, T, D), the other order in which heads are stored.
inline Tensor in_heads(I item, const Tensor& x) {
  if (item.reals[0] == 0) return flat_part(x, head_shape(item));
  return transpose(flat_part(x, {item.ints[0], item.ints[2], item.ints[1], item.ints[3]}), 1, 2);
}
inline Array in_heads(I item, const Array& x) {
  if (item.reals[0] == 0) return flat_part(x, head_shape(item));
  return transposed(flat_part(x, {item.ints[0], item.ints[2], item.ints[1], item.ints[3]}), 1, 2);
}

/// Sequences of the tokens of a packed row: [0, cut), none, [cut, tokens).
inline Tensor packed_at(std::int64_t cut, std::int64_t tokens) {
  const auto at = static_cast<double>(cut);
  return Tensor::of({0, at, at, static_cast<double>(tokens)}, DType::i32);
}
/// The tokens [first, end) of a row.
struct Sequence {
  std::int64_t row, first, end;
};
inline std::vector<Sequence> sequences_of(std::int64_t rows, std::int64_t tokens,
                                          std::int64_t cut) {
  if (cut >= 0) return {{0, 0, cut}, {0, cut, cut}, {0, cut, tokens}};
  std::vector<Sequence> found;
  for (std::int64_t row = 0; row < rows; ++row) found.push_back({row, 0, tokens});
  return found;
}
/// A place for that cut in a batch of one row, usually; -1: not packed.
inline std::int64_t draw_cut(Maker& m, std::int64_t batch, std::int64_t tokens) {
  return batch == 1 && m.rng.chance(0.4) ? m.rng.below(tokens + 1) : -1;
}

}  // namespace weft::generated
