#include "weft/core/kernels/rope.h"

#include <algorithm>
#include <type_traits>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// Rotates the halves of `heads` heads of one token.
template <class T, class A>
void rotate(const T* x, const A* cos, const A* sin, std::int64_t heads, std::int64_t half, A sign,
            T* y) {
  if constexpr (std::is_same_v<A, float> && !std::is_same_v<T, double>) {
    simd().of<T>().rope(x, cos, sin, heads, half, sign, y);
    return;
  }
  using C = Real<T>;
  for (std::int64_t h = 0; h < heads; ++h, x += 2 * half, y += 2 * half)
    for (std::int64_t i = 0; i < half; ++i) {
      const C a = static_cast<C>(x[i]), b = static_cast<C>(x[i + half]);
      const C c = static_cast<C>(cos[i]), s = static_cast<C>(sign * sin[i]);
      y[i] = T(a * c - b * s);
      y[i + half] = T(b * c + a * s);
    }
}

}  // namespace

void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& positions,
          std::int64_t offset, bool inverse, std::int64_t turned, const Tensor& y) {
  if (x.numel() == 0) return;
  const std::int64_t tokens = x.dim(1), heads = x.dim(2), half = x.dim(3) / 2;
  const std::int32_t* given = data_or_null<std::int32_t>(positions);
  const std::int64_t n = x.dim(0) * tokens, given_n = positions.defined() ? positions.numel() : 1;
  dispatch_floating(x.dtype(), [&]<class T>() {
    const auto run = [&]<class A>(const A* c, const A* s) {
      const T* px = x.data<T>();
      T* py = y.data<T>();
      parallel_for(n, 2 * heads * half, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t at = (given ? given[i % given_n] : offset + i % tokens) * half;
          const std::int64_t row = i * heads * 2 * half, rest = row + turned * 2 * half;
          rotate(px + row, c + at, s + at, turned, half, inverse ? A(-1) : A(1), py + row);
          if (px != py) std::copy_n(px + rest, (heads - turned) * 2 * half, py + rest);
        }
      });
    };
    if (cos.dtype() == DType::f64)
      run(cos.data<double>(), sin.data<double>());
    else
      run(cos.data<float>(), sin.data<float>());
  });
}

}  // namespace weft::cpu
