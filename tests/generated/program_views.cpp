#include <utility>
#include <vector>

#include "weft/autograd/view.h"
#include "weft/tests/generated/program_ops.h"

// Views and copies.
namespace weft::generated {
namespace {

bool two_axes(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  item.ints.push_back(m.axis(item.in[0]));
  return true;
}
int second(I item) { return static_cast<int>(item.ints[1]); }

// ints: the axis, then first, end and step of a slice of it.
bool piece(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  const std::int64_t n = m.shape(item.in[0])[axis_of(item)];
  const std::int64_t begin = m.rng.below(n + 1), end = begin + m.rng.below(n - begin + 1);
  item.ints.insert(item.ints.end(), {begin, end, 1 + m.rng.below(2)});
  return true;
}
Row slice_row(I item, const Row& row) {
  Row y;
  for (std::int64_t i = item.ints[1]; i < item.ints[2]; i += item.ints[3])
    y.push_back(row[static_cast<std::size_t>(i)]);
  return y;
}
bool position(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  const std::int64_t n = m.shape(item.in[0])[axis_of(item)];
  if (n == 0) return false;
  item.ints.push_back(m.rng.below(n));
  return true;
}
bool axis_of_one(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  return m.shape(item.in[0])[axis_of(item)] == 1;
}

// Another shape with as many elements: neighbouring axes are merged, or one is split.
bool other_shape(Maker& m, Item& item) {
  const int x = m.any(1);
  if (x < 0) return false;
  item.in = {x};
  Shape shape = m.shape(x);
  const int at = static_cast<int>(m.rng.below(shape.size()));
  if (m.rng.chance(0.5) && at + 1 < shape.size()) {
    shape[at] *= shape[at + 1];
    shape.erase(at + 1);
  } else if (shape[at] % 2 == 0 && shape.size() < 5) {
    shape[at] /= 2;
    shape.insert(at, 2);
  } else {
    const std::int64_t all = shape.numel();
    shape = {all};
  }
  item.ints.assign(shape.begin(), shape.end());
  return true;
}
// One axis is split, or one of length 1 added: a view for any strides.
bool split_shape(Maker& m, Item& item) {
  if (!new_axis(m, item)) return false;
  Shape shape = m.shape(item.in[0]);
  const int at = axis_of(item);
  if (shape.size() == 5) return false;
  const bool halves = at < shape.size() && shape[at] > 0 && shape[at] % 2 == 0;
  if (halves) shape[at] /= 2;
  shape.insert(at, halves ? 2 : 1);
  item.ints.assign(shape.begin(), shape.end());
  return true;
}
bool wider(Maker& m, Item& item) {
  const int x = m.any();
  item.in = {x};
  Shape shape = m.shape(x);
  for (std::int64_t& n : shape)
    if (n == 1) n = m.length();
  if (m.rng.chance(0.5) && shape.size() < 4) shape.insert(0, m.length());
  item.ints.assign(shape.begin(), shape.end());
  return true;
}
bool order(Maker& m, Item& item) {
  const int x = m.any(2);
  if (x < 0 || m.shape(x).size() > 4) return false;
  item.in = {x};
  for (int d = 0; d < m.shape(x).size(); ++d) item.ints.push_back(d);
  for (std::size_t d = item.ints.size(); d > 1; --d)
    std::swap(item.ints[d - 1],
              item.ints[static_cast<std::size_t>(m.rng.below(static_cast<std::int64_t>(d)))]);
  return true;
}
Tensor permuted(I item, T in) {
  return permute(in[0], std::vector<int>(item.ints.begin(), item.ints.end()));
}
Array permuted_exact(I item, A in) {
  Shape shape;
  for (const std::int64_t d : item.ints) shape.push_back(in[0]->shape[static_cast<int>(d)]);
  return rearranged(*in[0], shape, [&](const Place& p) {
    Place source(p.size());
    for (std::size_t i = 0; i < p.size(); ++i)
      source[static_cast<std::size_t>(item.ints[i])] = p[i];
    return source;
  });
}
Array expanded_exact(I item, A in) { return broadcast_to(*in[0], given_shape(item)); }

Array moved_exact(I item, A in) {
  Item order;
  for (int d = 0; d < in[0]->ndim(); ++d)
    if (d != axis_of(item)) order.ints.push_back(d);
  order.ints.insert(order.ints.begin() + second(item), axis_of(item));
  return permuted_exact(order, in);
}
Array select_exact(I item, A in) {
  return reduce_axes(*in[0], {axis_of(item)}, false,
                     [&](const Row& row) { return row[static_cast<std::size_t>(item.ints[1])]; });
}

Array same(I, A in) { return *in[0]; }

const ProgramOp kViewOps[] = {
    {"reshape", 2, other_shape, [](I item, T in) { return reshape(in[0], given_shape(item)); },
     [](I item, A in) { return reshaped(*in[0], given_shape(item)); }},
    {"view", 2, split_shape, [](I item, T in) { return view(in[0], given_shape(item)); },
     [](I item, A in) { return reshaped(*in[0], given_shape(item)); }},
    {"permute", 2, order, permuted, permuted_exact},
    {"transpose", 2, two_axes,
     [](I item, T in) { return transpose(in[0], axis_of(item), second(item)); },
     [](I item, A in) { return transposed(*in[0], axis_of(item), second(item)); }},
    {"movedim", 2, two_axes,
     [](I item, T in) { return movedim(in[0], axis_of(item), second(item)); }, moved_exact},
    {"unbind", 2, position, [](I item, T in) { return unbind(in[0], axis_of(item))[second(item)]; },
     select_exact},
    {"expand", 2, wider, [](I item, T in) { return expand(in[0], given_shape(item)); },
     expanded_exact},
    {"slice", 2, piece,
     [](I item, T in) {
       return slice(in[0], axis_of(item), item.ints[1], item.ints[2], item.ints[3]);
     },
     [](I item, A in) {
       return along(*in[0], axis_of(item), [&](const Row& row) { return slice_row(item, row); });
     }},
    {"narrow", 2, piece,
     [](I item, T in) {
       return narrow(in[0], axis_of(item), item.ints[1], item.ints[2] - item.ints[1]);
     },
     [](I item, A in) {
       return along(*in[0], axis_of(item), [&](const Row& row) {
         return Row(row.begin() + item.ints[1], row.begin() + item.ints[2]);
       });
     }},
    {"select", 2, position, [](I item, T in) { return select(in[0], axis_of(item), item.ints[1]); },
     select_exact},
    {"squeeze", 2, axis_of_one, [](I item, T in) { return squeeze(in[0], axis_of(item)); },
     [](I item, A in) {
       Shape shape = in[0]->shape;
       shape.erase(axis_of(item));
       return reshaped(*in[0], shape);
     }},
    {"unsqueeze", 2, new_axis, [](I item, T in) { return unsqueeze(in[0], axis_of(item)); },
     [](I item, A in) {
       Shape shape = in[0]->shape;
       shape.insert(axis_of(item), 1);
       return reshaped(*in[0], shape);
     }},
    {"flatten", 2, one, [](I, T in) { return flatten(in[0]); },
     [](I, A in) { return reshaped(*in[0], {in[0]->shape.numel()}); }},
    {"contiguous", 2, one, [](I, T in) { return contiguous(in[0]); }, same},
    {"clone", 2, one, [](I, T in) { return clone(in[0]); }, same},
};

}  // namespace

std::span<const ProgramOp> view_ops() { return kViewOps; }

}  // namespace weft::generated
