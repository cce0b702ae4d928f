#include "weft/tests/generated/layouts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace weft::generated {
namespace {

struct Placing {
  Shape strides;
  std::int64_t first = 0;  // index of element 0 in the storage
  std::int64_t room = 0;   // elements of the storage
};

// Strides of a tensor whose axes have this order in memory, outermost first.
Shape packed_strides(const Shape& shape, const std::vector<int>& order, std::int64_t step) {
  Shape strides = shape;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    strides[*axis] = step;
    step *= shape[*axis];
  }
  return strides;
}

Placing place(Layout layout, const Shape& shape) {
  const int n = shape.size();
  std::vector<int> order;
  for (int i = 0; i < n; ++i) order.push_back(i);
  Placing p;
  if (layout == Layout::transposed && n > 1)
    std::rotate(order.begin(), order.end() - 1, order.end());
  if (layout == Layout::exchanged && n > 1) std::swap(order[0], order[1]);
  p.strides = packed_strides(shape, order, layout == Layout::every_second ? 2 : 1);
  if (layout == Layout::gaps)
    for (int i = 0; i + 1 < n; ++i)
      p.strides[i] += p.strides[i] / std::max<std::int64_t>(shape[n - 1], 1) * 3;
  if (layout == Layout::offset) p.first = 3;
  if (const int axis = repeated_axis(shape, layout); axis >= 0) {
    Shape kept = shape;
    kept[axis] = 1;
    p.strides = contiguous_strides(kept);
    p.strides[axis] = 0;
  }
  if (layout == Layout::any_one)
    for (int i = 0; i < n; ++i)
      if (shape[i] == 1) p.strides[i] = i % 3 == 0 ? 977 : i % 3 == 1 ? 0 : 1;
  if (layout == Layout::reversed && n > 0) {
    p.first = std::max<std::int64_t>(shape[n - 1] - 1, 0);
    p.strides[n - 1] = -1;
  }
  p.room = p.first + 1;
  for (int i = 0; i < n; ++i)
    if (shape[i] > 1 && p.strides[i] > 0) p.room += (shape[i] - 1) * p.strides[i];
  return p;
}

// Calls f(offset, index) for the elements in row-major order.
template <class F>
void for_each_place(const Shape& shape, const Shape& strides, F f) {
  const std::int64_t count = shape.numel();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, at = 0;
    for (int d = shape.size() - 1; d >= 0; --d) {
      at += rest % shape[d] * strides[d];
      rest /= shape[d];
    }
    f(at, static_cast<std::size_t>(i));
  }
}

}  // namespace

const char* name(Layout layout) {
  constexpr const char* kNames[kLayouts] = {
      "contiguous", "transposed",      "exchanged",      "every_second", "gaps",
      "offset",     "broadcast_first", "broadcast_last", "any_one",      "reversed"};
  return kNames[static_cast<int>(layout)];
}

int repeated_axis(const Shape& shape, Layout layout) {
  if (layout == Layout::broadcast_first)
    for (int i = 0; i < shape.size(); ++i)
      if (shape[i] > 1) return i;
  if (layout == Layout::broadcast_last)
    for (int i = shape.size() - 1; i >= 0; --i)
      if (shape[i] > 1) return i;
  return -1;
}

bool changes(const Shape& shape, Layout layout) {
  const Placing p = place(layout, shape);
  return p.first != 0 || !(p.strides == contiguous_strides(shape));
}

Tensor tensor_in(Layout layout, const Shape& shape, const std::vector<double>& values, DType dtype,
                 Device device) {
  const Placing p = place(layout, shape);
  // Between the elements: values that change any result that reads them.
  const double filler = is_compute(dtype) ? std::numeric_limits<double>::quiet_NaN() : 113;
  std::vector<double> memory(static_cast<std::size_t>(p.room), filler);
  for_each_place(shape, p.strides, [&](std::int64_t at, std::size_t i) {
    memory[static_cast<std::size_t>(p.first + at)] = values[i];
  });
  const Tensor all = Tensor::from<double>(memory, {p.room}).to(dtype).to(device);
  return all.alias(shape, p.strides, p.first);
}

void repeat_values(Layout layout, const Shape& shape, std::vector<double>& values) {
  const int axis = repeated_axis(shape, layout);
  if (axis < 0) return;
  Shape strides = contiguous_strides(shape);
  strides[axis] = 0;
  std::vector<double> repeated(values.size());
  for_each_place(shape, strides, [&](std::int64_t at, std::size_t i) {
    repeated[i] = values[static_cast<std::size_t>(at)];
  });
  values = std::move(repeated);
}

std::vector<double> values_of(const Tensor& t) {
  const Tensor host = t.detach().to(kCpu);
  std::vector<double> values(static_cast<std::size_t>(host.numel()));
  const auto read = [&]<class T>() {
    const T* first = host.data<T>();
    for_each_place(host.shape(), host.strides(), [&](std::int64_t at, std::size_t i) {
      values[i] = static_cast<double>(first[at]);
    });
  };
  if (!values.empty()) dispatch_all(host.dtype(), read);
  return values;
}

}  // namespace weft::generated
