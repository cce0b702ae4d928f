#pragma once
// Element-wise ops by definition, and numbers that are not finite.
#include <cmath>
#include <limits>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/tests/support.h"

namespace weft::elementwise_test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline const double kNan = std::nan("");

// y[i] = f(x[i]) element by element, by definition.
template <class F>
Tensor map(const Tensor& x, F f) {
  Tensor y = Tensor::empty(x.shape(), DType::f64);
  std::vector<double> v(static_cast<std::size_t>(x.numel()));
  x.copy_to(v);
  for (std::size_t i = 0; i < v.size(); ++i) y.data<double>()[i] = f(v[i]);
  return y;
}
template <class F>
Tensor map(const Tensor& a, const Tensor& b, F f) {
  std::vector<double> v(static_cast<std::size_t>(b.numel()));
  b.copy_to(v);
  std::size_t i = 0;
  return map(a, [&](double x) { return f(x, v[i++]); });
}

}  // namespace weft::elementwise_test
