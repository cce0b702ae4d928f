#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/sort.h"
#include "weft/tests/generated/program_ops.h"

// Order and indexing.
namespace weft::generated {
namespace {

// ints: the axis, [1]: how many; reals[0]: descending, [1]: the indices instead of the values.
bool ordered(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  item.ints.push_back(m.shape(item.in[0])[axis_of(item)]);
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0, m.rng.chance(0.2) ? 1.0 : 0.0};
  return true;
}
bool best(Maker& m, Item& item) {
  if (!ordered(m, item) || item.ints[1] == 0) return false;
  item.ints[1] = 1 + m.rng.below(item.ints[1]);
  item.reals[0] = 1;
  return true;
}
Tensor part_of(I item, const ValuesIndices& r) { return item.reals[1] == 1 ? r.indices : r.values; }
Array ordered_exact(I item, A in) {
  return along(*in[0], axis_of(item), [&](const Row& row) {
    Row keys = row, y;
    if (item.reals[0] == 0)
      for (Number& x : keys) x = -x;
    for (const int i : falling(keys))
      y.push_back(item.reals[1] == 1 ? Number(i) : row[static_cast<std::size_t>(i)]);
    y.resize(static_cast<std::size_t>(item.ints[1]));
    return y;
  });
}

bool selected(Maker& m, Item& item) {
  return one_axis(m, item) && draw_indices(m, item, m.length(), m.shape(item.in[0])[axis_of(item)]);
}
// ints: the axis, the length along it, then an index for every element.
bool picked(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  Shape shape = m.shape(item.in[0]);
  const std::int64_t n = shape[axis_of(item)];
  shape[axis_of(item)] = m.length();
  item.ints.push_back(shape[axis_of(item)]);
  return shape.numel() < 200 && draw_indices(m, item, shape.numel(), n);
}
bool scattered(Maker& m, Item& item) {
  if (!picked(m, item)) return false;
  Shape shape = m.shape(item.in[0]);
  shape[axis_of(item)] = item.ints[1];
  item.in.push_back(m.like(shape));
  return true;
}
bool table(Maker& m, Item& item) {
  const int x = m.any(2);
  if (x < 0 || m.shape(x).size() != 2) return false;
  item.in = {x};
  item.ints = {2, m.rng.below(4)};
  return draw_indices(m, item, item.ints[0] * item.ints[1], m.shape(x)[0]);
}
// A last axis of length 1 times the classes; ints: their number, then one for every element.
bool classes(Maker& m, Item& item) {
  one(m, item);
  item.ints = {1 + m.rng.below(4)};
  return m.shape(item.in[0]).size() < 5 &&
         draw_indices(m, item, m.shape(item.in[0]).numel(), item.ints[0]);
}
bool matrix(Maker& m, Item& item) {
  const int x = m.any(2);
  item.in = {x};
  item.ints = {m.rng.below(5) - 2};
  return x >= 0;
}
Tensor picking(I item, const Tensor& x) {
  Shape shape = x.shape();
  shape[axis_of(item)] = item.ints[1];
  return int_tensor(item, 2, shape, x);
}
Array gather_exact(I item, A in) {
  Shape shape = in[0]->shape;
  const int axis = axis_of(item);
  shape[axis] = item.ints[1];
  std::size_t next = 2;  // coordinates come in row-major order
  return rearranged(*in[0], shape, [&](Place p) {
    p[static_cast<std::size_t>(axis)] = item.ints[next++];
    return p;
  });
}
template <bool adds>
Array scatter_exact(I item, A in) {
  Array y = *in[0];
  Array places = filled(in[0]->shape, 0);
  for (std::size_t i = 0; i < places.at.size(); ++i) places.at[i].v = static_cast<double>(i);
  const Array target = gather_exact(item, {&places});
  for (std::size_t i = 0; i < target.at.size(); ++i) {
    Number& place = y.at[static_cast<std::size_t>(target.at[i].v)];
    place = adds ? place + in[1]->at[i] : in[1]->at[i];
  }
  return y;
}
// ints: the axis, the number of rows, then an index for each.
bool rows_added(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  Shape shape = m.shape(item.in[0]);
  const std::int64_t n = shape[axis_of(item)];
  shape[axis_of(item)] = m.length();
  item.ints.push_back(shape[axis_of(item)]);
  if (!draw_indices(m, item, item.ints[1], n)) return false;
  item.in.push_back(m.like(shape));
  return true;
}
Array index_add_exact(I item, A in) {
  Array y = *in[0];
  const auto axis = static_cast<std::size_t>(axis_of(item));
  rearranged(filled({}, 0), in[1]->shape, [&](Place p) {
    const Number term = element(*in[1], p);
    p[axis] = item.ints[static_cast<std::size_t>(2 + p[axis])];
    std::int64_t at = 0;
    for (int d = 0; d < y.ndim(); ++d) at = at * y.shape[d] + p[static_cast<std::size_t>(d)];
    Number& sum = y.at[static_cast<std::size_t>(at)];
    sum = sum + term;
    return Place{};
  });
  return y;
}
Row select_row(I item, const Row& row) {
  Row y;
  for (std::size_t i = 1; i < item.ints.size(); ++i)
    y.push_back(row.empty() ? Number(0) : row[static_cast<std::size_t>(item.ints[i])]);
  return y;
}
Array one_hot_exact(I item, A in) {
  Shape shape = in[0]->shape;
  shape.push_back(item.ints[0]);
  Array y = filled(shape, 0);
  for (std::size_t i = 0; i < in[0]->at.size(); ++i)
    y.at[i * static_cast<std::size_t>(item.ints[0]) + static_cast<std::size_t>(item.ints[1 + i])] =
        in[0]->at[i];
  return y;
}
template <bool lower>
Array triangle(I item, A in) {
  Array keep = *in[0];
  const std::int64_t rows = in[0]->shape[in[0]->ndim() - 2], columns = in[0]->shape.back();
  for (std::size_t i = 0; i < keep.at.size(); ++i) {
    const auto k = static_cast<std::int64_t>(i);
    const std::int64_t above = k % columns - k / columns % rows;
    if (lower ? above > item.ints[0] : above < item.ints[0]) keep.at[i] = 0;
  }
  return keep;
}

const ProgramOp kIndexOps[] = {
    {"sort", 2, ordered,
     [](I item, T in) { return part_of(item, sort(in[0], axis_of(item), item.reals[0] == 1)); },
     ordered_exact},
    {"argsort", 2, ordered,
     [](I item, T in) {
       const Tensor order = argsort(in[0], axis_of(item), item.reals[0] == 1);
       return item.reals[1] == 1 ? order : gather(in[0], axis_of(item), order);
     },
     ordered_exact},
    {"topk", 2, best,
     [](I item, T in) { return part_of(item, topk(in[0], item.ints[1], axis_of(item))); },
     ordered_exact},
    {"index_select", 2, selected,
     [](I item, T in) {
       const auto count = static_cast<std::int64_t>(item.ints.size()) - 1;
       return index_select(in[0], axis_of(item), int_tensor(item, 1, {count}, in[0]));
     },
     [](I item, A in) {
       return along(*in[0], axis_of(item), [&](const Row& row) { return select_row(item, row); });
     }},
    {"gather", 2, picked,
     [](I item, T in) { return gather(in[0], axis_of(item), picking(item, in[0])); }, gather_exact},
    {"scatter_add", 2, scattered,
     [](I item, T in) { return scatter_add(in[0], axis_of(item), picking(item, in[0]), in[1]); },
     scatter_exact<true>},
    {"scatter", 2, scattered,
     [](I item, T in) { return scatter(in[0], axis_of(item), picking(item, in[0]), in[1]); },
     scatter_exact<false>},
    {"index_add", 2, rows_added,
     [](I item, T in) {
       const Tensor index = int_tensor(item, 2, {item.ints[1]}, in[0]);
       return index_add(in[0], axis_of(item), index, in[1]);
     },
     index_add_exact},
    {"embedding", 2, table,
     [](I item, T in) {
       return embedding(in[0], int_tensor(item, 2, {item.ints[0], item.ints[1]}, in[0]));
     },
     [](I item, A in) {
       const Shape shape{item.ints[0], item.ints[1], in[0]->shape[1]};
       return rearranged(*in[0], shape, [&](const Place& p) {
         return Place{item.ints[static_cast<std::size_t>(2 + p[0] * item.ints[1] + p[1])], p[2]};
       });
     }},
    {"one_hot", 2, classes,
     [](I item, T in) {
       const Tensor ids = int_tensor(item, 1, in[0].shape(), in[0]);
       return in[0].unsqueeze(-1) * one_hot(ids, item.ints[0], in[0].dtype());
     },
     one_hot_exact},
    {"tril", 2, matrix, [](I item, T in) { return tril(in[0], item.ints[0]); }, triangle<true>},
    {"triu", 2, matrix, [](I item, T in) { return triu(in[0], item.ints[0]); }, triangle<false>},
};

}  // namespace

std::span<const ProgramOp> index_ops() { return kIndexOps; }

}  // namespace weft::generated
