#include <algorithm>
#include <cmath>

#include "weft/autograd/indexing.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/softmax.h"
#include "weft/autograd/sort.h"
#include "weft/tests/generated/program_ops.h"

// Reductions, normalised rows, order and indexing.
namespace weft::generated {
namespace {

// ints: the axes to reduce, all if empty; reals[0]: keepdim.
bool some_axes(Maker& m, Item& item) {
  const int x = m.any();
  item.in = {x};
  const int axes = m.shape(x).size();
  if (axes > 0 && m.rng.chance(0.8)) item.ints = {m.rng.below(axes)};
  if (axes > 1 && !item.ints.empty() && m.rng.chance(0.4)) {
    item.ints.push_back((item.ints[0] + 1) % axes);
  }
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0};
  return true;
}
bool kept(I item) { return item.reals[0] == 1; }
bool kept_axis(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0};
  return m.shape(item.in[0])[axis_of(item)] > 0;
}

template <class F>
Tensor over_axes(I item, F f) {
  const auto axis = [&](std::size_t i) { return static_cast<int>(item.ints[i]); };
  if (item.ints.empty()) return f({});
  if (item.ints.size() == 1) return f({axis(0)});
  return f({axis(0), axis(1)});
}
using Dims = std::initializer_list<int>;

Array reduced(I item, A in, Number (*f)(const Row&)) {
  return reduce_axes(*in[0], {item.ints.begin(), item.ints.end()}, kept(item), f);
}
Array one_reduced(I item, A in, Number (*f)(const Row&)) {
  return reduce_axes(*in[0], {axis_of(item)}, kept(item), f);
}
Number average(const Row& row) { return total(row) / static_cast<double>(row.size()); }
Number variance(const Row& row) {
  if (row.size() < 2) return std::nan("");  // the divisor would be 0
  const Number mean = average(row);
  Number sum;
  for (N x : row) sum = sum + (x - mean) * (x - mean);
  return sum / (static_cast<double>(row.size()) - 1);
}
Number lowest(const Row& row) {
  Row negated;
  for (N x : row) negated.push_back(0 - x);
  return 0 - highest(negated);
}
Number log_sum_exp(const Row& row) {
  Number sum;
  for (N x : row) sum = sum + exp(x);
  return log(sum);
}
Number length(const Row& row) {
  Number sum;
  for (N x : row) sum = sum + x * x;
  return sqrt(sum);
}
Number cubic_length(const Row& row) {
  Number sum;
  for (N x : row) sum = sum + power(x.v < 0 ? 0 - x : x, 3);
  return power(sum, 1.0 / 3);
}
Row log_softmax_row(const Row& row) {
  const Number sum = log_sum_exp(row);
  Row y;
  for (N x : row) y.push_back(x - sum);
  return y;
}
Row running_sum(const Row& row) {
  Row y;
  Number sum;
  for (N x : row) y.push_back(sum = sum + x);
  return y;
}
Row sorted(const Row& row) {
  Row y;
  for (const int i : falling(row)) y.push_back(row[static_cast<std::size_t>(i)]);
  return y;
}

bool best(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  const std::int64_t n = m.shape(item.in[0])[axis_of(item)];
  if (n == 0) return false;
  item.ints.push_back(1 + m.rng.below(n));
  return true;
}

// Indices into an axis of length n, in ints from `from` on.
bool draw_indices(Maker& m, Item& item, std::int64_t count, std::int64_t n) {
  if (n == 0 && count > 0) return false;
  for (std::int64_t i = 0; i < count; ++i) item.ints.push_back(m.rng.below(n));
  return true;
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
bool matrix(Maker& m, Item& item) {
  const int x = m.any(2);
  item.in = {x};
  item.ints = {m.rng.below(5) - 2};
  return x >= 0;
}
Tensor indices(I item, std::size_t from, const Shape& shape) {
  return Tensor::from<std::int64_t>(std::span(item.ints).subspan(from), shape);
}
Tensor picking(I item, const Tensor& x) {
  Shape shape = x.shape();
  shape[axis_of(item)] = item.ints[1];
  return indices(item, 2, shape).to(x.device());
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
Array scatter_exact(I item, A in) {
  Array y = *in[0];
  Array places = filled(in[0]->shape, 0);
  for (std::size_t i = 0; i < places.at.size(); ++i) places.at[i].v = static_cast<double>(i);
  const Array target = gather_exact(item, {&places});
  for (std::size_t i = 0; i < target.at.size(); ++i) {
    Number& sum = y.at[static_cast<std::size_t>(target.at[i].v)];
    sum = sum + in[1]->at[i];
  }
  return y;
}
Row select_row(I item, const Row& row) {
  Row y;
  for (std::size_t i = 1; i < item.ints.size(); ++i)
    y.push_back(row.empty() ? Number(0) : row[static_cast<std::size_t>(item.ints[i])]);
  return y;
}

const ProgramOp kAxisOps[] = {
    {"sum", 2, some_axes,
     [](I item, T in) {
       return over_axes(item, [&](Dims d) { return sum(in[0], d, kept(item)); });
     },
     [](I item, A in) { return reduced(item, in, total); }},
    {"mean", 2, some_axes,
     [](I item, T in) {
       return over_axes(item, [&](Dims d) { return mean(in[0], d, kept(item)); });
     },
     [](I item, A in) { return reduced(item, in, average); }},
    {"var", 2, some_axes,
     [](I item, T in) {
       return over_axes(item, [&](Dims d) { return var(in[0], d, 1, kept(item)); });
     },
     [](I item, A in) { return reduced(item, in, variance); }},
    {"max", 2, kept_axis, [](I item, T in) { return max(in[0], axis_of(item), kept(item)); },
     [](I item, A in) { return one_reduced(item, in, highest); }},
    {"min", 2, kept_axis, [](I item, T in) { return min(in[0], axis_of(item), kept(item)); },
     [](I item, A in) { return one_reduced(item, in, lowest); }},
    {"logsumexp", 2, kept_axis,
     [](I item, T in) { return logsumexp(in[0], axis_of(item), kept(item)); },
     [](I item, A in) { return one_reduced(item, in, log_sum_exp); }},
    {"norm", 2, one, [](I, T in) { return norm(in[0]); },
     [](I, A in) { return reduce_axes(*in[0], {}, false, length); }},
    {"norm 3", 2, one, [](I, T in) { return norm(in[0], 3); },
     [](I, A in) { return reduce_axes(*in[0], {}, false, cubic_length); }},
    {"cumsum", 2, one_axis, [](I item, T in) { return cumsum(in[0], axis_of(item)); },
     [](I item, A in) { return along(*in[0], axis_of(item), running_sum); }},
    {"softmax", 2, one_axis, [](I item, T in) { return softmax(in[0], axis_of(item)); },
     [](I item, A in) { return along(*in[0], axis_of(item), softmax); }},
    {"log_softmax", 2, one_axis, [](I item, T in) { return log_softmax(in[0], axis_of(item)); },
     [](I item, A in) { return along(*in[0], axis_of(item), log_softmax_row); }},
    {"sort", 2, one_axis, [](I item, T in) { return sort(in[0], axis_of(item), true).values; },
     [](I item, A in) { return along(*in[0], axis_of(item), sorted); }},
    {"topk", 2, best, [](I item, T in) { return topk(in[0], item.ints[1], axis_of(item)).values; },
     [](I item, A in) {
       return along(*in[0], axis_of(item), [&](const Row& row) {
         Row y = sorted(row);
         y.resize(static_cast<std::size_t>(item.ints[1]));
         return y;
       });
     }},
    {"index_select", 2, selected,
     [](I item, T in) {
       const auto count = static_cast<std::int64_t>(item.ints.size()) - 1;
       return index_select(in[0], axis_of(item), indices(item, 1, {count}).to(in[0].device()));
     },
     [](I item, A in) {
       return along(*in[0], axis_of(item), [&](const Row& row) { return select_row(item, row); });
     }},
    {"gather", 2, picked,
     [](I item, T in) { return gather(in[0], axis_of(item), picking(item, in[0])); }, gather_exact},
    {"scatter_add", 2, scattered,
     [](I item, T in) { return scatter_add(in[0], axis_of(item), picking(item, in[0]), in[1]); },
     scatter_exact},
    {"embedding", 2, table,
     [](I item, T in) {
       return embedding(in[0], indices(item, 2, {item.ints[0], item.ints[1]}).to(in[0].device()));
     },
     [](I item, A in) {
       const Shape shape{item.ints[0], item.ints[1], in[0]->shape[1]};
       return rearranged(*in[0], shape, [&](const Place& p) {
         return Place{item.ints[static_cast<std::size_t>(2 + p[0] * item.ints[1] + p[1])], p[2]};
       });
     }},
    {"tril", 2, matrix, [](I item, T in) { return tril(in[0], item.ints[0]); },
     [](I item, A in) {
       Array keep = *in[0];
       const std::int64_t rows = in[0]->shape[in[0]->ndim() - 2], columns = in[0]->shape.back();
       for (std::size_t i = 0; i < keep.at.size(); ++i) {
         const auto k = static_cast<std::int64_t>(i);
         if (k % columns - k / columns % rows > item.ints[0]) keep.at[i] = 0;
       }
       return keep;
     }},
};

}  // namespace

std::span<const ProgramOp> axis_ops() { return kAxisOps; }

}  // namespace weft::generated
