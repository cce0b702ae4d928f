#include <functional>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/logic.h"
#include "weft/tests/generated/program_ops.h"

// Comparisons, logic, and selection by a mask.
namespace weft::generated {
namespace {

// Two operands, or one and a number.
bool compared(Maker& m, Item& item) {
  if (m.rng.chance(0.3)) return number(m, item);
  return pair(m, item);
}
template <Tensor (*f)(const Tensor&, const Tensor&), Tensor (*g)(const Tensor&, double)>
Tensor compare(I item, T in) {
  return item.reals.empty() ? f(in[0], in[1]) : g(in[0], item.reals[0]);
}
template <class Holds>
Array comparison(I item, A in) {
  const auto f = [](N a, N b) -> Number {
    Closest::see(a, b);
    return Holds()(a.v, b.v) ? 1 : 0;
  };
  if (item.reals.empty()) return binary(*in[0], *in[1], f);
  return map(*in[0], [&](N x) { return f(x, item.reals[0]); });
}

// x with NaN above the number and an infinity below -1.
Tensor with_holes(I item, const Tensor& x) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor low = where(lt(x, -1), item.ints[0] ? infinity : -infinity, x);
  return where(gt(x, item.reals[0]), std::numeric_limits<double>::quiet_NaN(), low);
}
template <bool nan, bool infinite, bool finite>
Array kind_of(I item, A in) {
  return map(*in[0], [&](N x) -> Number {
    const bool high = greater(x, item.reals[0]), low = greater(-1, x);
    return (high ? nan : low ? infinite : finite) ? 1 : 0;
  });
}

// Truth of relu(x) and of y > number: two dtypes.
bool two_truths(Maker& m, Item& item) {
  pair(m, item);
  item.reals = {dyadic(m)};
  return true;
}
template <Tensor (*f)(const Tensor&, const Tensor&)>
Tensor logical(I item, T in) {
  return f(relu(in[0]), gt(in[1], item.reals[0]));
}
template <class Operator>
Array logical_exact(I item, A in) {
  return binary(*in[0], *in[1], [&](N x, N y) -> Number {
    const bool a = greater(x, 0), b = greater(y, item.reals[0]);
    return Operator()(a, b) ? 1 : 0;
  });
}

// ints: an axis or none; reals: keepdim, the number above which an element is true.
bool reduced_truth(Maker& m, Item& item) {
  one(m, item);
  const int axes = m.shape(item.in[0]).size();
  if (axes > 0 && m.rng.chance(0.8)) item.ints = {m.rng.below(axes)};
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0, dyadic(m)};
  return true;
}
template <Tensor (*all_axes)(const Tensor&), Tensor (*one_of)(const Tensor&, int, bool)>
Tensor truth(I item, T in) {
  const Tensor mask = gt(in[0], item.reals[1]);
  return item.ints.empty() ? all_axes(mask) : one_of(mask, axis_of(item), kept(item));
}
template <bool any>
Array truth_exact(I item, A in) {
  const Array mask = map(*in[0], [&](N x) -> Number { return greater(x, item.reals[1]) ? 1 : 0; });
  return reduce_axes(mask, {item.ints.begin(), item.ints.end()}, kept(item) && !item.ints.empty(),
                     [](const Row& row) -> Number {
                       for (N x : row)
                         if ((x.v != 0) == any) return any ? 1 : 0;
                       return any ? 0 : 1;
                     });
}

// The third operand, above a number, selects.
bool chosen(Maker& m, Item& item) {
  pair(m, item);
  Shape shape = m.shape(item.in[static_cast<std::size_t>(m.rng.below(2))]);
  if (shape.size() > 0 && m.rng.chance(0.3)) shape[0] = 1;
  item.in.push_back(m.like(shape));
  item.reals = {dyadic(m)};
  return true;
}
Array where_exact(I item, A in) {
  const Shape shape = plus(plus(*in[0], *in[1]), *in[2]).shape;
  Array y = broadcast_to(*in[0], shape);
  const Array other = broadcast_to(*in[1], shape), condition = broadcast_to(*in[2], shape);
  for (std::size_t i = 0; i < y.at.size(); ++i)
    if (!greater(condition.at[i], item.reals[0])) y.at[i] = other.at[i];
  return y;
}
bool filled_by_mask(Maker& m, Item& item) {
  broadcast_second(m, item);
  item.reals = {dyadic(m), dyadic(m)};
  item.ints = {m.rng.below(2)};
  return true;
}
// Where the second is above reals[0], reals[1]; else x. With ints[0], the other way round.
Array filled_exact(I item, A in) {
  return binary(*in[0], *in[1], [&](N x, N y) {
    return greater(y, item.reals[0]) != (item.ints[0] == 1) ? Number(item.reals[1]) : x;
  });
}

const ProgramOp kMaskOps[] = {
    {"eq", 2, compared, compare<eq, eq>, comparison<std::equal_to<>>},
    {"ne", 2, compared, compare<ne, ne>, comparison<std::not_equal_to<>>},
    {"lt", 2, compared, compare<lt, lt>, comparison<std::less<>>},
    {"le", 2, compared, compare<le, le>, comparison<std::less_equal<>>},
    {"gt", 2, compared, compare<gt, gt>, comparison<std::greater<>>},
    {"ge", 2, compared, compare<ge, ge>, comparison<std::greater_equal<>>},
    {"isnan", 2, number, [](I item, T in) { return isnan(with_holes(item, in[0])); },
     kind_of<true, false, false>},
    {"isinf", 2, number, [](I item, T in) { return isinf(with_holes(item, in[0])); },
     kind_of<false, true, false>},
    {"isfinite", 2, number, [](I item, T in) { return isfinite(with_holes(item, in[0])); },
     kind_of<false, false, true>},
    {"logical_and", 2, two_truths, logical<logical_and>, logical_exact<std::logical_and<>>},
    {"logical_or", 2, two_truths, logical<logical_or>, logical_exact<std::logical_or<>>},
    {"logical_not", 2, one, [](I, T in) { return logical_not(relu(in[0])); },
     [](I, A in) { return map(*in[0], [](N x) -> Number { return greater(x, 0) ? 0 : 1; }); }},
    {"any", 2, reduced_truth, truth<any, any>, truth_exact<true>},
    {"all", 2, reduced_truth, truth<all, all>, truth_exact<false>},
    {"where", 2, chosen, [](I item, T in) { return where(gt(in[2], item.reals[0]), in[0], in[1]); },
     where_exact},
    {"where number", 2, filled_by_mask,
     [](I item, T in) {
       const Tensor mask = gt(in[1], item.reals[0]);
       return item.ints[0] ? where(mask, in[0], item.reals[1]) : where(mask, item.reals[1], in[0]);
     },
     filled_exact},
    {"masked_fill", 2, filled_by_mask,
     [](I item, T in) {
       const Tensor mask = gt(in[1], item.reals[0]);
       return masked_fill(in[0], item.ints[0] ? logical_not(mask) : mask, item.reals[1]);
     },
     filled_exact},
};

}  // namespace

std::span<const ProgramOp> mask_ops() { return kMaskOps; }

}  // namespace weft::generated
