#include "weft/tests/generated/program_ops.h"

#include <utility>

#include "weft/autograd/view.h"

namespace weft::generated {

std::span<const ProgramOp> program_ops() {
  static const std::vector<ProgramOp> all = [] {
    std::vector<ProgramOp> found;
    for (const auto& kind :
         {elementwise_ops(), unary_ops(), mask_ops(), member_ops(), axis_ops(), index_ops(),
          view_ops(), join_ops(), fused_ops(), loss_ops(), sequence_ops(), recurrent_ops(),
          rope_ops(), expert_ops(), token_ops(), capacity_ops()})
      found.insert(found.end(), kind.begin(), kind.end());
    return found;
  }();
  return all;
}

bool kept_axis(Maker& m, Item& item) {
  if (!one_axis(m, item)) return false;
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0};
  return m.shape(item.in[0])[axis_of(item)] > 0;
}

// Some axes of the second have length 1, or leading axes are dropped.
bool broadcast_second(Maker& m, Item& item) {
  const int a = m.any();
  Shape shape = m.shape(a);
  if (m.rng.chance(0.4)) {
    Shape part;
    const std::int64_t from = m.rng.below(shape.size() + 1);
    for (int d = static_cast<int>(from); d < shape.size(); ++d)
      part.push_back(m.rng.chance(0.3) ? 1 : shape[d]);
    shape = part;
  }
  const int b = m.like(shape);
  item.in = {a, b};
  return true;
}
bool pair(Maker& m, Item& item) {
  broadcast_second(m, item);
  if (m.rng.chance(0.3)) std::swap(item.in[0], item.in[1]);
  return true;
}
bool same_shapes(Maker& m, Item& item) {
  const int x = m.any(1);
  if (x < 0) return false;
  const Shape shape = m.shape(x);
  item.in = {x, m.like(shape)};
  return true;
}
bool new_axis(Maker& m, Item& item) {
  const int x = m.any();
  item.in = {x};
  item.ints = {m.rng.below(m.shape(x).size() + 1)};
  return true;
}
double dyadic(Maker& m) { return static_cast<double>(m.rng.below(33) - 16) / 8 + 0.0625; }
bool number(Maker& m, Item& item) {
  one(m, item);
  item.reals = {dyadic(m)};
  item.ints = {m.rng.below(2)};
  return true;
}
bool draw_indices(Maker& m, Item& item, std::int64_t count, std::int64_t n) {
  if (n == 0 && count > 0) return false;
  for (std::int64_t i = 0; i < count; ++i) item.ints.push_back(m.rng.below(n));
  return true;
}

Tensor int_tensor(I item, std::size_t from, const Shape& shape, const Tensor& x) {
  const auto count = static_cast<std::size_t>(shape.numel());
  return Tensor::from<std::int64_t>(std::span(item.ints).subspan(from, count), shape)
      .to(x.device());
}
Tensor flat_part(const Tensor& x, const Shape& shape) {
  if (x.numel() == shape.numel()) return reshape(x, shape);
  return reshape(narrow(flatten(x), 0, 0, shape.numel()), shape);
}
Array flat_part(const Array& x, const Shape& shape) {
  return {shape, {x.at.begin(), x.at.begin() + shape.numel()}};
}
Shape given_shape(I item) { return {item.ints.begin(), item.ints.end()}; }

Array plus(const Array& a, const Array& b) {
  return binary(a, b, [](N x, N y) { return x + y; });
}
Array times(const Array& a, const Array& b) {
  return binary(a, b, [](N x, N y) { return x * y; });
}
Array broadcast_to(const Array& x, const Shape& shape) {
  return binary(x, filled(shape, 0), [](N a, N) { return a; });
}
Array linear_exact(const Array& x, const Array& weight) {
  const Array w = transposed(weight, 0, 1);
  if (x.ndim() > 1) return matmul(x, w);
  const Array y = matmul(reshaped(x, {1, x.shape[0]}), w);
  return reshaped(y, {y.shape[1]});
}
Number average(const Row& row) { return total(row) / static_cast<double>(row.size()); }
Number log_sum_exp(const Row& row) {
  Number sum;
  for (N x : row) sum = sum + exp(x);
  return log(sum);
}

}  // namespace weft::generated
