#include "weft/core/kernels/copy.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// The f32 next to v with an odd last bit where f32 cannot hold v. Rounding it once more to at most
// 22 bits gives what rounding v at once would: an odd last bit is never a tie.
float round_to_odd(double v) {
  const float nearest = static_cast<float>(v);
  const double back = static_cast<double>(nearest);
  if (back == v || std::isnan(v)) return nearest;
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  const bool too_large = std::abs(back) > std::abs(v);
  return std::bit_cast<float>((too_large ? bits - 1 : bits) | 1u);
}

template <class To, class From>
To convert(From v) {
  if constexpr (std::is_same_v<To, From>)
    return v;
  else if constexpr (std::is_same_v<To, bool>)
    return static_cast<double>(v) != 0;
  else if constexpr (std::is_arithmetic_v<To>)
    return static_cast<To>(v);
  else if constexpr (std::is_same_v<From, double> || std::is_same_v<From, std::int32_t> ||
                     std::is_same_v<From, std::int64_t>)
    return To(round_to_odd(static_cast<double>(v)));
  else
    return To(static_cast<float>(v));
}

// Axes merged where both tensors step through them as if they were one.
struct Axes {
  Shape shape, in, out;
};

Axes merge(const Tensor& x, const Tensor& y) {
  Axes a;
  for (int i = 0; i < x.ndim(); ++i) {
    const std::int64_t n = x.dim(i);
    if (n == 1) continue;
    const int last = a.shape.size() - 1;
    if (last >= 0 && a.in[last] == x.strides()[i] * n && a.out[last] == y.strides()[i] * n) {
      a.shape[last] *= n;
      a.in[last] = x.strides()[i];
      a.out[last] = y.strides()[i];
    } else {
      a.shape.push_back(n);
      a.in.push_back(x.strides()[i]);
      a.out.push_back(y.strides()[i]);
    }
  }
  if (a.shape.empty()) {
    a.shape.push_back(1);
    a.in.push_back(1);
    a.out.push_back(1);
  }
  return a;
}

template <class From, class To>
void copy_typed(const Axes& a, const From* x, To* y) {
  const int last = a.shape.size() - 1;
  const std::int64_t inner = a.shape[last], in = a.in[last], out = a.out[last];
  std::int64_t rows = 1;
  for (int i = 0; i < last; ++i) rows *= a.shape[i];
  if (rows == 1 && in == 1 && out == 1) {  // the whole is one run
    parallel_for(inner, 1, [&](std::int64_t begin, std::int64_t end) {
      if constexpr (std::is_same_v<From, To>)
        std::memcpy(y + begin, x + begin, static_cast<std::size_t>(end - begin) * sizeof(To));
      else
        for (std::int64_t i = begin; i < end; ++i) y[i] = convert<To>(x[i]);
    });
    return;
  }
  parallel_for(rows, inner, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::int64_t rest = r, xo = 0, yo = 0;
      for (int i = last - 1; i >= 0; --i) {
        const std::int64_t at = rest % a.shape[i];
        rest /= a.shape[i];
        xo += at * a.in[i];
        yo += at * a.out[i];
      }
      const From* xr = x + xo;
      To* yr = y + yo;
      if constexpr (std::is_same_v<From, To>) {
        if (in == 1 && out == 1) {
          std::memcpy(yr, xr, static_cast<std::size_t>(inner) * sizeof(To));
          continue;
        }
      }
      for (std::int64_t i = 0; i < inner; ++i) yr[i * out] = convert<To>(xr[i * in]);
    }
  });
}

}  // namespace

void copy(const Tensor& source, const Tensor& out) {
  if (source.numel() == 0) return;
  const Axes axes = merge(source, out);
  dispatch_all(source.dtype(), [&]<class From>() {
    const From* x = source.data<From>();
    dispatch_all(out.dtype(), [&]<class To>() { copy_typed(axes, x, out.data<To>()); });
  });
}

void fill(const Tensor& out, double value) {
  const std::int64_t n = out.numel();
  if (n == 0) return;
  dispatch_all(out.dtype(), [&]<class T>() {
    T v = convert<T>(value);
    if (out.is_contiguous()) {
      T* p = out.data<T>();
      parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) p[i] = v;
      });
      return;
    }
    const Tensor one = Tensor::wrap(&v, {1}, out.dtype());
    copy_typed(merge(one.alias(out.shape(), Shape::filled(out.ndim(), 0), 0), out), &v,
               out.data<T>());
  });
}

}  // namespace weft::cpu
