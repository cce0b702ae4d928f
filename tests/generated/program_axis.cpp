#include <cmath>
#include <limits>
#include <vector>

#include "weft/autograd/reduce.h"
#include "weft/autograd/softmax.h"
#include "weft/tests/generated/program_ops.h"

// Reductions and normalised rows.
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
// An axis, or without ints all elements.
bool axis_or_all(Maker& m, Item& item) {
  if (!kept_axis(m, item)) return false;
  if (m.rng.chance(0.2) && m.shape(item.in[0]).numel() > 0) {
    item.ints.clear();
    item.reals = {0};
  }
  return true;
}
bool some_element(Maker& m, Item& item) { return one(m, item) && m.shape(item.in[0]).numel() > 0; }
// The shape of an operand that would broadcast to x, in ints.
bool narrower(Maker& m, Item& item) {
  one(m, item);
  const Shape& x = m.shape(item.in[0]);
  for (int d = static_cast<int>(m.rng.below(x.size() + 1)); d < x.size(); ++d)
    item.ints.push_back(m.rng.chance(0.5) ? 1 : x[d]);
  return true;
}

std::vector<int> axes_of(I item) { return {item.ints.begin(), item.ints.end()}; }
template <Tensor (*all_axes)(const Tensor&), Tensor (*one_of)(const Tensor&, int, bool)>
Tensor over_one(I item, T in) {
  return item.ints.empty() ? all_axes(in[0]) : one_of(in[0], axis_of(item), kept(item));
}

template <Number (*f)(const Row&)>
Array reduced(I item, A in) {
  return reduce_axes(*in[0], {item.ints.begin(), item.ints.end()}, kept(item), f);
}
template <Number (*f)(const Row&)>
Array whole(I, A in) {
  return reduce_axes(*in[0], {}, false, f);
}
Number variance(const Row& row) {
  if (row.size() < 2) return std::nan("");  // the divisor would be 0
  const Number mean = average(row);
  Number sum;
  for (N x : row) sum = sum + (x - mean) * (x - mean);
  return sum / (static_cast<double>(row.size()) - 1);
}
Number deviation(const Row& row) { return sqrt(variance(row)); }
Number lowest(const Row& row) {
  Row negated;
  for (N x : row) negated.push_back(-x);
  return -highest(negated);
}
// The first of the largest or smallest.
Number place_of_highest(const Row& row) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < row.size(); ++i)
    if (greater(row[i], row[best])) best = i;
  return static_cast<double>(best);
}
Number place_of_lowest(const Row& row) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < row.size(); ++i)
    if (greater(row[best], row[i])) best = i;
  return static_cast<double>(best);
}
Number product(const Row& row) {
  Number y = 1;
  for (N x : row) y = y * x;
  return y;
}
Number length(const Row& row) {
  Number sum;
  for (N x : row) sum = sum + x * x;
  return sqrt(sum);
}
Number cubic_length(const Row& row) {
  Number sum;
  for (N x : row) sum = sum + power(x.v < 0 ? -x : x, 3);
  return power(sum, 1.0 / 3);
}
// |x|, with derivative 0 at 0.
Number size_of(N x) {
  if (x.v == 0) return 0;
  return greater(x, 0) ? x : -x;
}
Number sum_of_sizes(const Row& row) {
  Number sum;
  for (N x : row) sum = sum + size_of(x);
  return sum;
}
Number largest_size(const Row& row) {
  Row sizes;
  for (N x : row) sizes.push_back(size_of(x));
  return highest(sizes);
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
Array summed_to(I item, A in) {
  const Shape &x = in[0]->shape, target = given_shape(item);
  const int more = x.size() - target.size();
  std::vector<int> axes;
  for (int d = 0; d < x.size(); ++d)
    if (d < more || target[d - more] == 1) axes.push_back(d);
  if (axes.empty()) return *in[0];
  return reshaped(reduce_axes(*in[0], axes, true, total), target);
}

const ProgramOp kAxisOps[] = {
    {"sum", 2, some_axes, [](I item, T in) { return sum(in[0], axes_of(item), kept(item)); },
     reduced<total>},
    {"mean", 2, some_axes, [](I item, T in) { return mean(in[0], axes_of(item), kept(item)); },
     reduced<average>},
    {"sum_to", 2, narrower, [](I item, T in) { return sum_to(in[0], given_shape(item)); },
     summed_to},
    {"var", 2, some_axes, [](I item, T in) { return var(in[0], axes_of(item), 1, kept(item)); },
     reduced<variance>},
    {"stddev", 2, some_axes,
     [](I item, T in) { return stddev(in[0], axes_of(item), 1, kept(item)); }, reduced<deviation>},
    {"max", 2, axis_or_all, over_one<max, max>, reduced<highest>},
    {"min", 2, axis_or_all, over_one<min, min>, reduced<lowest>},
    {"argmax", 2, kept_axis, [](I item, T in) { return argmax(in[0], axis_of(item), kept(item)); },
     reduced<place_of_highest>},
    {"argmin", 2, kept_axis, [](I item, T in) { return argmin(in[0], axis_of(item), kept(item)); },
     reduced<place_of_lowest>},
    {"prod", 2, axis_or_all, over_one<prod, prod>, reduced<product>},
    {"logsumexp", 2, kept_axis,
     [](I item, T in) { return logsumexp(in[0], axis_of(item), kept(item)); },
     reduced<log_sum_exp>},
    {"norm", 2, some_axes, [](I item, T in) { return norm(in[0], axes_of(item), kept(item)); },
     reduced<length>},
    {"norm 3", 2, some_axes, [](I item, T in) { return norm(in[0], axes_of(item), kept(item), 3); },
     reduced<cubic_length>},
    {"norm 1", 2, some_axes, [](I item, T in) { return norm(in[0], axes_of(item), kept(item), 1); },
     reduced<sum_of_sizes>},
    {"norm of all", 2, one, [](I, T in) { return norm(in[0], 1); }, whole<sum_of_sizes>},
    {"norm infinity", 2, some_element,
     [](I, T in) { return norm(in[0], std::numeric_limits<double>::infinity()); },
     whole<largest_size>},
    {"norm infinity along an axis", 2, axis_or_all,
     [](I item, T in) {
       return norm(in[0], axes_of(item), kept(item), std::numeric_limits<double>::infinity());
     },
     reduced<largest_size>},
    {"cumsum", 2, one_axis, [](I item, T in) { return cumsum(in[0], axis_of(item)); },
     [](I item, A in) { return along(*in[0], axis_of(item), running_sum); }},
    {"softmax", 2, one_axis, [](I item, T in) { return softmax(in[0], axis_of(item)); },
     [](I item, A in) { return along(*in[0], axis_of(item), softmax); }},
    {"log_softmax", 2, one_axis, [](I item, T in) { return log_softmax(in[0], axis_of(item)); },
     [](I item, A in) { return along(*in[0], axis_of(item), log_softmax_row); }},
};

}  // namespace

std::span<const ProgramOp> axis_ops() { return kAxisOps; }

}  // namespace weft::generated
