#pragma once
#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/router.h"
#include "weft/autograd/view.h"
#include "weft/tests/generated/program_ops.h"

// What the ops over rows of tokens share. An existing item is flattened to their first operand, and
// cut, so
// that every shape can reach them.
namespace weft::generated {

// ints: tokens, width (at least `least`).
inline bool rows(Maker& m, Item& item, std::int64_t least) {
  one(m, item);
  const std::int64_t count = m.shape(item.in[0]).numel(), width = least + m.rng.below(4);
  item.ints = {std::min<std::int64_t>(count / width, 16), width};
  return item.ints[0] > 0;
}
inline Shape row_shape(I item) { return {item.ints[0], item.ints[1]}; }
inline Tensor in_rows(I item, const Tensor& x) { return flat_part(x, row_shape(item)); }
inline std::size_t tokens(I item) { return static_cast<std::size_t>(item.ints[0]); }
inline std::size_t width(I item) { return static_cast<std::size_t>(item.ints[1]); }
inline Row row_of(const Array& x, std::size_t t, std::size_t n) {
  const auto at = [&](std::size_t i) { return x.at.begin() + static_cast<std::ptrdiff_t>(i); };
  return {at(t * n), at((t + 1) * n)};
}

// ints[2 ...]: 1 for a token that is padding, ints[2 + tokens]: which form of the op.
inline bool padded_rows(Maker& m, Item& item, std::int64_t forms) {
  if (!rows(m, item, 2)) return false;
  const bool some = m.rng.chance(0.5);
  for (std::int64_t t = 0; t < item.ints[0]; ++t)
    item.ints.push_back(some && m.rng.chance(0.2) ? 1 : 0);
  item.ints.push_back(m.rng.below(forms));
  return true;
}
inline bool padding_at(I item, std::size_t t) { return item.ints[2 + t] == 1; }
inline std::int64_t form(I item) { return item.ints[2 + tokens(item)]; }
inline Tensor padding(I item, const Tensor& x) {
  const auto first = item.ints.begin() + 2;
  if (std::count(first, first + item.ints[0], 1) == 0) return {};
  return ne(int_tensor(item, 2, {item.ints[0]}, x), 0);
}

// f(row, token) of every token; for padding the same value in all columns.
template <class F>
Array of_tokens(I item, const Array& x, std::size_t columns, double of_padding, F f) {
  Array y{{item.ints[0], static_cast<std::int64_t>(columns)}, {}};
  for (std::size_t t = 0; t < tokens(item); ++t) {
    Row row(columns, of_padding);
    if (!padding_at(item, t)) row = f(row_of(x, t, width(item)), t);
    y.at.insert(y.at.end(), row.begin(), row.end());
  }
  return y;
}
/// The probabilities plus an eighth of the experts.
inline Tensor both(const Routing& r) { return r.probs + cast(r.experts, r.probs.dtype()) * 0.125; }
inline Number score_of(RouterScore score, N x) {
  return score == RouterScore::sigmoid ? sigmoid(x) : sqrt(softplus(x));
}

}  // namespace weft::generated
