#include "weft/core/kernels/swiglu.h"

#include <cmath>

#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

void forward_f64(const double* gate, const double* up, double* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
}

void backward_f64(const double* gate, const double* up, const double* dy, double* dgate,
                  double* dup, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double g = gate[i], s = 1 / (1 + std::exp(-g));
    dgate[i] = dy[i] * up[i] * s * (1 + g * (1 - s));
    dup[i] = dy[i] * g * s;
  }
}

// Row starts of gate, up and y: packed rows are twice as far apart.
struct Layout {
  std::int64_t rows, width, stride;
  bool packed;
  Layout(const Tensor& y, bool is_packed)
      : rows(y.numel() / y.dim(-1)),
        width(y.dim(-1)),
        stride(is_packed ? 2 * width : width),
        packed(is_packed) {}
};

constexpr std::int64_t kWork = 24;  // one exp and one division per element

}  // namespace

void swiglu_fwd(const Tensor& gate, const Tensor& up, const Tensor& y) {
  if (y.numel() == 0) return;
  const Layout l(y, !up.defined());
  dispatch_floating(y.dtype(), [&]<class T>() {
    const T* g = gate.data<T>();
    const T* u = l.packed ? g + l.width : up.data<T>();
    T* py = y.data<T>();
    parallel_for(l.rows, kWork * l.width, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t in = r * l.stride, out = r * l.width;
        if constexpr (std::is_same_v<T, double>)
          forward_f64(g + in, u + in, py + out, l.width);
        else
          simd().of<T>().swiglu(g + in, u + in, py + out, l.width);
      }
    });
  });
}

void swiglu_bwd(const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& dgate,
                const Tensor& dup) {
  if (dy.numel() == 0) return;
  const Layout l(dy, !up.defined());
  dispatch_floating(dy.dtype(), [&]<class T>() {
    const T *g = gate.data<T>(), *pdy = dy.data<T>();
    const T* u = l.packed ? g + l.width : up.data<T>();
    T* dg = dgate.data<T>();
    T* du = l.packed ? dg + l.width : dup.data<T>();
    parallel_for(l.rows, kWork * l.width, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t in = r * l.stride, out = r * l.width;
        if constexpr (std::is_same_v<T, double>)
          backward_f64(g + in, u + in, pdy + out, dg + in, du + in, l.width);
        else
          simd().of<T>().swiglu_bwd(g + in, u + in, pdy + out, dg + in, du + in, l.width);
      }
    });
  });
}

}  // namespace weft::cpu
