#include "weft/tests/generated/interpreter.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace weft::generated {
namespace {

double closest = std::numeric_limits<double>::infinity();

// The coordinates of element i of a shape.
Place place_of(std::int64_t i, const Shape& shape) {
  Place place(static_cast<std::size_t>(shape.size()));
  for (int d = shape.size() - 1; d >= 0; --d) {
    place[static_cast<std::size_t>(d)] = i % shape[d];
    i /= shape[d];
  }
  return place;
}

std::size_t index_of(const Place& place, const Shape& shape) {
  std::int64_t i = 0;
  for (int d = 0; d < shape.size(); ++d) i = i * shape[d] + place[static_cast<std::size_t>(d)];
  return static_cast<std::size_t>(i);
}

// The coordinates in a broadcast operand for `place` in the result's shape.
Place broadcast_place(const Place& place, const Shape& operand) {
  Place own(place.end() - operand.size(), place.end());
  for (int d = 0; d < operand.size(); ++d)
    if (operand[d] == 1) own[static_cast<std::size_t>(d)] = 0;
  return own;
}

Shape broadcast(const Shape& a, const Shape& b) {
  Shape longer = a.size() >= b.size() ? a : b;
  const Shape& other = a.size() >= b.size() ? b : a;
  for (int d = 1; d <= other.size(); ++d)
    if (longer[longer.size() - d] == 1) longer[longer.size() - d] = other[other.size() - d];
  return longer;
}

}  // namespace

void Closest::reset() { closest = std::numeric_limits<double>::infinity(); }
double Closest::get() { return closest; }
void Closest::see(const Number& a, const Number& b) {
  if (std::isnan(a.v) || std::isnan(b.v)) closest = 0;
  if ((a.exact && b.exact) || (a.v == b.v && a.v == 0)) return;
  closest = std::min(closest, std::abs(a.v - b.v) / std::max({std::abs(a.v), std::abs(b.v), 0.1}));
}

bool greater(const Number& a, const Number& b) {
  Closest::see(a, b);
  return a.v > b.v;
}

std::vector<int> falling(const Row& row) {
  std::vector<int> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  for (const Number& x : row)
    if (std::isnan(x.v)) return (closest = 0, order);  // NaN has no place
  std::stable_sort(order.begin(), order.end(), [&row](int a, int b) {
    return row[static_cast<std::size_t>(a)].v > row[static_cast<std::size_t>(b)].v;
  });
  for (std::size_t i = 1; i < order.size(); ++i)
    Closest::see(row[static_cast<std::size_t>(order[i - 1])],
                 row[static_cast<std::size_t>(order[i])]);
  return order;
}

Array filled(const Shape& shape, Number value) {
  return {shape, Row(static_cast<std::size_t>(shape.numel()), value)};
}

Array map(const Array& x, const std::function<Number(const Number&)>& f) {
  Array y = x;
  for (Number& n : y.at) n = f(n);
  return y;
}

Array binary(const Array& a, const Array& b,
             const std::function<Number(const Number&, const Number&)>& f) {
  Array y = filled(broadcast(a.shape, b.shape), 0);
  for (std::size_t i = 0; i < y.at.size(); ++i) {
    const Place place = place_of(static_cast<std::int64_t>(i), y.shape);
    y.at[i] =
        f(element(a, broadcast_place(place, a.shape)), element(b, broadcast_place(place, b.shape)));
  }
  return y;
}

Array along(const Array& x, int axis, const std::function<Row(const Row&)>& f) {
  const std::int64_t n = x.shape[axis];
  Shape outer = x.shape;
  outer[axis] = 1;
  // The length of f's rows, found with a sample row if there is none. Its comparisons are not
  // recorded.
  const double before = closest;
  const std::int64_t length =
      static_cast<std::int64_t>(f(Row(static_cast<std::size_t>(n), 0.5)).size());
  closest = before;
  Shape shape = x.shape;
  shape[axis] = length;
  Array y = filled(shape, 0);
  for (std::int64_t i = 0; i < outer.numel(); ++i) {
    Place place = place_of(i, outer);
    std::int64_t& k = place[static_cast<std::size_t>(axis)];
    Row row;
    for (k = 0; k < n; ++k) row.push_back(element(x, place));
    const Row result = f(row);
    for (k = 0; k < length; ++k) y.at[index_of(place, shape)] = result[static_cast<std::size_t>(k)];
  }
  return y;
}

Array reduce_axes(const Array& x, std::vector<int> axes, bool keepdim,
                  const std::function<Number(const Row&)>& f) {
  if (axes.empty())
    for (int d = 0; d < x.ndim(); ++d) axes.push_back(d);
  Shape kept = x.shape, left;
  for (const int d : axes) kept[d] = 1;
  for (int d = 0; d < x.ndim(); ++d)
    if (std::find(axes.begin(), axes.end(), d) == axes.end()) left.push_back(x.shape[d]);
  std::vector<Row> rows(static_cast<std::size_t>(kept.numel()));
  for (std::size_t i = 0; i < x.at.size(); ++i)
    rows[index_of(broadcast_place(place_of(static_cast<std::int64_t>(i), x.shape), kept), kept)]
        .push_back(x.at[i]);
  Array y{keepdim ? kept : left, {}};
  for (const Row& row : rows) y.at.push_back(f(row));
  return y;
}

Array rearranged(const Array& x, const Shape& shape, const std::function<Place(const Place&)>& f) {
  Array y = filled(shape, 0);
  for (std::size_t i = 0; i < y.at.size(); ++i)
    y.at[i] = element(x, f(place_of(static_cast<std::int64_t>(i), shape)));
  return y;
}

const Number& element(const Array& x, const Place& place) { return x.at[index_of(place, x.shape)]; }

Array matmul(const Array& a, const Array& b) {
  const int na = a.ndim(), nb = b.ndim();
  const std::int64_t rows = a.shape[na - 2], inner = a.shape[na - 1], columns = b.shape[nb - 1];
  Shape lead_a(a.shape.begin(), a.shape.end() - 2), lead_b(b.shape.begin(), b.shape.end() - 2);
  Shape shape = broadcast(lead_a, lead_b);
  shape.push_back(rows);
  shape.push_back(columns);
  Array y = filled(shape, 0);
  for (std::size_t i = 0; i < y.at.size(); ++i) {
    const Place place = place_of(static_cast<std::int64_t>(i), shape);
    const Place lead(place.begin(), place.end() - 2);
    Place pa = broadcast_place(lead, lead_a), pb = broadcast_place(lead, lead_b);
    pa.insert(pa.end(), {place[place.size() - 2], 0});
    pb.insert(pb.end(), {0, place.back()});
    for (std::int64_t k = 0; k < inner; ++k) {
      pa.back() = k;
      pb[pb.size() - 2] = k;
      y.at[i] = y.at[i] + element(a, pa) * element(b, pb);
    }
  }
  return y;
}

Array transposed(const Array& x, int a, int b) {
  Shape shape = x.shape;
  std::swap(shape[a], shape[b]);
  return rearranged(x, shape, [a, b](Place p) {
    std::swap(p[static_cast<std::size_t>(a)], p[static_cast<std::size_t>(b)]);
    return p;
  });
}

Array reshaped(const Array& x, const Shape& shape) { return {shape, x.at}; }

Number total(const Row& row) {
  Number sum;
  for (const Number& n : row) sum = sum + n;
  return sum;
}

Number highest(const Row& row) {
  Number most = row[0];
  for (std::size_t i = 1; i < row.size(); ++i)
    if (greater(row[i], most)) most = row[i];
  return most;
}

Row softmax(const Row& row) {
  Row y;
  double most = -std::numeric_limits<double>::infinity();
  for (const Number& n : row) most = std::max(most, n.v);
  for (const Number& n : row) y.push_back(exp(n - most));
  const Number sum = total(y);
  for (Number& n : y) n = n / sum;
  return y;
}

}  // namespace weft::generated
