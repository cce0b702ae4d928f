#include "weft/tests/oracle.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <xtensor/xmanipulation.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xsort.hpp>
#include <xtensor/xstrided_view.hpp>

#include "weft/xtensor.h"

namespace weft::oracle {
namespace {

using Array = xt::xarray<double>;

// Copies through Weft's element reader, so that the reference does not depend on xt_view.
Array array_of(const Tensor& x) {
  Array a = Array::from_shape(std::vector<std::size_t>(x.shape().begin(), x.shape().end()));
  x.copy_to({a.data(), a.size()});
  return a;
}

Tensor tensor_of(const Array& a) {
  return Tensor::from(std::span<const double>(a.data(), a.size()),
                      Shape(a.shape().begin(), a.shape().end()));
}

// Restores the reduced axes with length 1.
Array with_ones(Array a, const std::vector<std::size_t>& axes) {
  for (const std::size_t i : axes) a = Array(xt::expand_dims(a, i));
  return a;
}

// By the definition, because xt::variance of xtensor 0.24.3 crashes on some of the test's shapes.
Array squared_deviation(const Array& a, const std::vector<std::size_t>& axes) {
  const Array mu = with_ones(xt::mean(a, axes), axes);
  const Array squares = xt::square(a - mu);
  return xt::mean(squares, axes);
}

}  // namespace

Tensor binary(Binary op, const Tensor& x, const Tensor& y) {
  const Array a = array_of(x), b = array_of(y);
  switch (op) {
    case Binary::add:
      return tensor_of(a + b);
    case Binary::sub:
      return tensor_of(a - b);
    case Binary::mul:
      return tensor_of(a * b);
    case Binary::div:
      return tensor_of(a / b);
    case Binary::minimum:
      return tensor_of(xt::minimum(a, b));
    case Binary::maximum:
      break;
  }
  return tensor_of(xt::maximum(a, b));
}

Tensor less(const Tensor& x, const Tensor& y) {
  const Array a = array_of(x), b = array_of(y);
  return tensor_of(xt::cast<double>(a < b));
}

Tensor where_less(const Tensor& x, const Tensor& y) {
  const Array a = array_of(x), b = array_of(y);
  return tensor_of(xt::where(a < b, a, b));
}

Tensor reduce(Reduction op, const Tensor& x, const std::vector<int>& axes, bool keepdim) {
  const Array a = array_of(x);
  std::vector<std::size_t> at(axes.begin(), axes.end());
  std::sort(at.begin(), at.end());
  Array r;
  switch (op) {
    case Reduction::sum:
      r = xt::sum(a, at);
      break;
    case Reduction::mean:
      r = xt::mean(a, at);
      break;
    case Reduction::max:
      r = xt::amax(a, at);
      break;
    case Reduction::min:
      r = xt::amin(a, at);
      break;
    case Reduction::var:
      r = squared_deviation(a, at);
      break;
  }
  return tensor_of(keepdim ? with_ones(r, at) : r);
}

Tensor argmax(const Tensor& x, int axis) {
  Array a = array_of(x);
  // xtensor 0.24.3 returns the smallest element's index for a single axis, so it gets a second
  // axis.
  if (x.ndim() == 1) a.reshape(std::vector<std::size_t>{a.size(), 1});
  const Array place = xt::cast<double>(xt::argmax(a, axis));
  return x.ndim() == 1 ? tensor_of(place).view({}) : tensor_of(place);
}

Tensor cumsum(const Tensor& x, int axis) { return tensor_of(xt::cumsum(array_of(x), axis)); }

Tensor transpose(const Tensor& x, const std::vector<int>& axes) {
  return tensor_of(xt::transpose(array_of(x), axes));
}

Tensor slice(const Tensor& x, const std::vector<int>& begin, const std::vector<int>& end,
             const std::vector<int>& step) {
  const Array a = array_of(x);
  xt::xstrided_slice_vector ranges;
  for (std::size_t i = 0; i < begin.size(); ++i)
    ranges.push_back(xt::range(begin[i], end[i], step[i]));
  return tensor_of(xt::strided_view(a, ranges));
}

bool view_shares_memory(const Tensor& x) { return xt_view<double>(x).data() == x.data<double>(); }

void add_one_through_view(const Tensor& x) {
  auto view = xt_view<double>(x);
  view += 1;
}

double sum_through_view(const Tensor& x) { return xt::sum(xt_view<double>(x))(); }

Tensor made_from_array(const std::vector<int>& shape, const void** memory) {
  Array a = xt::arange<double>(std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>()));
  a.reshape(std::vector<std::size_t>(shape.begin(), shape.end()));
  *memory = a.data();
  return from_xtensor(std::move(a));
}

void view_as_f32(const Tensor& x) { xt_view<float>(x); }

}  // namespace weft::oracle
