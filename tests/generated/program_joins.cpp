#include <algorithm>
#include <utility>
#include <vector>

#include "weft/autograd/view.h"
#include "weft/tests/generated/program_ops.h"

// Ops that cut, join and repeat.
namespace weft::generated {
namespace {

// A second operand that differs in the length of one axis.
bool joined(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  Shape shape = m.shape(item.in[0]);
  shape[axis_of(item)] = m.length();
  item.in.push_back(m.like(shape));
  return true;
}
Array cat_exact(I item, A in) {
  const int axis = axis_of(item);
  const std::int64_t first = in[0]->shape[axis];
  Shape shape = in[0]->shape;
  shape[axis] = 2 * first + in[1]->shape[axis];
  Array y = filled(shape, 0);
  std::size_t i = 0;
  const auto at = static_cast<std::size_t>(axis);
  const Array places = rearranged(filled({}, 0), shape, [&](Place p) {
    const std::int64_t k = p[at];
    const bool second = k >= first && k < first + in[1]->shape[axis];
    p[at] = k < first ? k : second ? k - first : k - first - in[1]->shape[axis];
    y.at[i++] = element(second ? *in[1] : *in[0], p);
    return Place{};
  });
  return y;
}
bool stacked(Maker& m, Item& item) {
  if (!new_axis(m, item)) return false;
  const Shape shape = m.shape(item.in[0]);
  item.in.push_back(m.like(shape));
  return shape.size() < 5;
}
Array stack_exact(I item, A in) {
  Shape shape = in[0]->shape;
  shape.insert(axis_of(item), 1);
  const Array a = reshaped(*in[0], shape), b = reshaped(*in[1], shape);
  return along(cat_exact(item, {&a, &b}), axis_of(item), [](const Row& row) {
    return Row{row[0], row[1]};
  });
}
bool padded(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  item.ints.insert(item.ints.end(), {m.rng.below(3), m.rng.below(3)});
  item.reals = {m.rng.chance(0.5) ? 0 : 0.5};
  return true;
}
bool rolled(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  item.ints.push_back(m.rng.below(9) - 4);
  return true;
}
// ints: the axis, the size of a piece, and its index.
bool cut(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  const std::int64_t n = m.shape(item.in[0])[axis_of(item)], size = 1 + m.rng.below(3);
  if (n == 0) return false;
  item.ints.insert(item.ints.end(), {size, m.rng.below((n + size - 1) / size)});
  return true;
}
// ints: the axis, the size of all pieces but the last, and the index of a piece.
bool cut_by_count(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  const std::int64_t n = m.shape(item.in[0])[axis_of(item)], count = 1 + m.rng.below(4);
  if (n == 0) return false;
  const std::int64_t size = (n + count - 1) / count, pieces = (n + size - 1) / size;
  item.ints.insert(item.ints.end(), {size, m.rng.below(pieces), count});
  return true;
}
// ints: the axis, the first piece's length, and which of the two.
bool cut_in_two(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  const std::int64_t n = m.shape(item.in[0])[axis_of(item)];
  item.ints.insert(item.ints.end(), {m.rng.below(n + 1), m.rng.below(2)});
  return true;
}
Array piece_exact(I item, A in) {
  return along(*in[0], axis_of(item), [&](const Row& row) {
    const auto size = item.ints[1], from = size * item.ints[2];
    const auto end = std::min(from + size, static_cast<std::int64_t>(row.size()));
    return Row(row.begin() + from, row.begin() + end);
  });
}
// One or two axes.
bool turned(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  const int axes = m.shape(item.in[0]).size();
  if (axes > 1 && m.rng.chance(0.4)) item.ints.push_back((item.ints[0] + 1) % axes);
  return true;
}
Array flipped_exact(I item, A in) {
  return rearranged(*in[0], in[0]->shape, [&](Place p) {
    for (const std::int64_t d : item.ints) {
      std::int64_t& k = p[static_cast<std::size_t>(d)];
      k = in[0]->shape[static_cast<int>(d)] - 1 - k;
    }
    return p;
  });
}
// ints: how often for each axis, perhaps with one more in front.
bool repeated(Maker& m, Item& item) {
  one(m, item);
  const int axes = m.shape(item.in[0]).size();
  const int times = axes + (axes < 5 && m.rng.chance(0.3) ? 1 : 0);
  for (int d = 0; d < times; ++d)
    item.ints.push_back(m.rng.chance(0.5) ? 1 : m.rng.chance(0.05) ? 0 : 2 + m.rng.below(2));
  return true;
}
bool interleaved(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  item.ints.push_back(m.rng.chance(0.05) ? 0 : 1 + m.rng.below(3));
  return true;
}
Array repeated_exact(I item, A in) {
  Shape shape = in[0]->shape;
  if (shape.size() < static_cast<int>(item.ints.size())) shape.insert(0, 1);
  const Array x = reshaped(*in[0], shape);
  for (int d = 0; d < shape.size(); ++d) shape[d] *= item.ints[static_cast<std::size_t>(d)];
  return rearranged(x, shape, [&](Place p) {
    for (int d = 0; d < x.ndim(); ++d) p[static_cast<std::size_t>(d)] %= x.shape[d];
    return p;
  });
}

const ProgramOp kJoinOps[] = {
    {"split", 2, cut,
     [](I item, T in) {
       return split(in[0], item.ints[1], axis_of(item))[static_cast<int>(item.ints[2])];
     },
     piece_exact},
    {"cat", 2, joined,
     [](I item, T in) {
       return cat({in[0], in[1], in[0]}, axis_of(item));
     },
     cat_exact},
    {"stack", 2, stacked,
     [](I item, T in) {
       return stack({in[0], in[1]}, axis_of(item));
     },
     stack_exact},
    {"pad", 2, padded,
     [](I item, T in) {
       return pad(in[0], axis_of(item), item.ints[1], item.ints[2], item.reals[0]);
     },
     [](I item, A in) {
       return along(*in[0], axis_of(item), [&](Row row) {
         row.insert(row.begin(), static_cast<std::size_t>(item.ints[1]), item.reals[0]);
         row.insert(row.end(), static_cast<std::size_t>(item.ints[2]), item.reals[0]);
         return row;
       });
     }},
    {"roll", 2, rolled, [](I item, T in) { return roll(in[0], item.ints[1], axis_of(item)); },
     [](I item, A in) {
       return along(*in[0], axis_of(item), [&](const Row& row) {
         Row y = row;
         const auto n = static_cast<std::int64_t>(row.size());
         for (std::int64_t i = 0; i < n; ++i)
           y[static_cast<std::size_t>(((i + item.ints[1]) % n + n) % n)] =
               row[static_cast<std::size_t>(i)];
         return y;
       });
     }},
    {"split sizes", 2, cut_in_two,
     [](I item, T in) {
       const std::int64_t n = in[0].dim(axis_of(item)), first = item.ints[1];
       return split(in[0], {first, n - first}, axis_of(item))[static_cast<int>(item.ints[2])];
     },
     [](I item, A in) {
       return along(*in[0], axis_of(item), [&](const Row& row) {
         const auto middle = row.begin() + item.ints[1];
         return item.ints[2] ? Row(middle, row.end()) : Row(row.begin(), middle);
       });
     }},
    {"chunk", 2, cut_by_count,
     [](I item, T in) {
       return chunk(in[0], item.ints[3], axis_of(item))[static_cast<int>(item.ints[2])];
     },
     piece_exact},
    {"flip", 2, turned,
     [](I item, T in) { return flip(in[0], std::vector<int>(item.ints.begin(), item.ints.end())); },
     flipped_exact},
    {"repeat_interleave", 2, interleaved,
     [](I item, T in) { return repeat_interleave(in[0], item.ints[1], axis_of(item)); },
     [](I item, A in) {
       return along(*in[0], axis_of(item), [&](const Row& row) {
         Row y;
         for (N x : row) y.insert(y.end(), static_cast<std::size_t>(item.ints[1]), x);
         return y;
       });
     }},
    {"repeat", 2, repeated, [](I item, T in) { return repeat(in[0], given_shape(item)); },
     repeated_exact},
};

}  // namespace

std::span<const ProgramOp> join_ops() { return kJoinOps; }

}  // namespace weft::generated
