#include "weft/core/kernels/softmax.h"

#include <cmath>
#include <limits>

#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// The f64 rows: the reference for the row kernels of core/cpu/simd.
struct F64Rows {
  static double max_of(const double* x, std::int64_t n) {
    double m = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < n; ++i) m = std::max(m, x[i]);
    return m;
  }
  static double sum_exp(const double* x, double shift, std::int64_t n) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - shift);
    return sum;
  }
  static void softmax(const double* x, double* y, std::int64_t n) {
    const double m = max_of(x, n), sum = sum_exp(x, m, n);
    for (std::int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i] - m) / sum;
  }
  static void log_softmax(const double* x, double* y, std::int64_t n) {
    const double m = max_of(x, n), log_sum = std::log(sum_exp(x, m, n));
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] - m - log_sum;
  }
  static void softmax_bwd(const double* y, const double* dy, double* dx, std::int64_t n) {
    double dot = 0;
    for (std::int64_t i = 0; i < n; ++i) dot += y[i] * dy[i];
    for (std::int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - dot);
  }
  static void log_softmax_bwd(const double* y, const double* dy, double* dx, std::int64_t n) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += dy[i];
    for (std::int64_t i = 0; i < n; ++i) dx[i] = dy[i] - std::exp(y[i]) * sum;
  }
};

constexpr std::int64_t kWork = 32;  // two exp per element

// Calls row(r, C) for the row that starts at element r.
template <class F>
void each_row(const Tensor& x, F row) {
  if (x.numel() == 0) return;
  const std::int64_t C = x.dim(-1);
  parallel_for(x.numel() / C, kWork * C, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) row(r * C, C);
  });
}

}  // namespace

void softmax_fwd(const Tensor& x, const Tensor& y) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    const T* px = x.data<T>();
    T* py = y.data<T>();
    each_row(x, [=](std::int64_t at, std::int64_t C) {
      if constexpr (std::is_same_v<T, double>)
        F64Rows::softmax(px + at, py + at, C);
      else
        simd().of<T>().softmax(px + at, py + at, C);
    });
  });
}

void log_softmax_fwd(const Tensor& x, const Tensor& y) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    const T* px = x.data<T>();
    T* py = y.data<T>();
    each_row(x, [=](std::int64_t at, std::int64_t C) {
      if constexpr (std::is_same_v<T, double>)
        F64Rows::log_softmax(px + at, py + at, C);
      else
        simd().of<T>().log_softmax(px + at, py + at, C);
    });
  });
}

void softmax_bwd(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    const T *py = y.data<T>(), *pdy = dy.data<T>();
    T* pdx = dx.data<T>();
    each_row(y, [=](std::int64_t at, std::int64_t C) {
      if constexpr (std::is_same_v<T, double>)
        F64Rows::softmax_bwd(py + at, pdy + at, pdx + at, C);
      else
        simd().of<T>().softmax_bwd(py + at, pdy + at, pdx + at, C);
    });
  });
}

void log_softmax_bwd(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    const T *py = y.data<T>(), *pdy = dy.data<T>();
    T* pdx = dx.data<T>();
    each_row(y, [=](std::int64_t at, std::int64_t C) {
      if constexpr (std::is_same_v<T, double>)
        F64Rows::log_softmax_bwd(py + at, pdy + at, pdx + at, C);
      else
        simd().of<T>().log_softmax_bwd(py + at, pdy + at, pdx + at, C);
    });
  });
}

}  // namespace weft::cpu
