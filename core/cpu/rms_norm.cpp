#include "weft/core/kernels/rms_norm.h"

#include <cmath>

#include "weft/core/cpu/norm_rows.h"

namespace weft::cpu {
namespace {

// One row in f64: the definition that the row kernels are measured against.
void forward_f64(const double* x, const double* residual, const double* weight, double eps,
                 double* sum, double* y, std::int64_t C, double* rstd) {
  if (residual) {
    for (std::int64_t c = 0; c < C; ++c) sum[c] = x[c] + residual[c];
    x = sum;
  }
  double squares = 0;
  for (std::int64_t c = 0; c < C; ++c) squares += x[c] * x[c];
  *rstd = 1 / std::sqrt(squares / static_cast<double>(C) + eps);
  for (std::int64_t c = 0; c < C; ++c) y[c] = x[c] * *rstd * (weight ? weight[c] : 1);
}

void backward_f64(const double* x, const double* dy, const double* weight, const double* dsum,
                  double rstd, double* dx, double* dweight, std::int64_t C) {
  double mean_gx = 0;  // of g xhat with g = dy weight
  for (std::int64_t c = 0; c < C; ++c)
    mean_gx += (weight ? dy[c] * weight[c] : dy[c]) * x[c] * rstd / static_cast<double>(C);
  for (std::int64_t c = 0; c < C; ++c) {
    const double xhat = x[c] * rstd, g = weight ? dy[c] * weight[c] : dy[c];
    dx[c] = (g - xhat * mean_gx) * rstd + (dsum ? dsum[c] : 0);
    if (dweight) dweight[c] += dy[c] * xhat;
  }
}

}  // namespace

void rms_norm_fwd(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                  const Tensor& sum, const Tensor& y, const Tensor& rstd) {
  const std::int64_t rows = rstd.numel(), C = x.dim(-1);
  dispatch_floating(x.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T *px = x.data<T>(), *pr = data_or_null<T>(residual), *pw = data_or_null<T>(weight);
    T *ps = data_or_null<T>(sum), *py = y.data<T>();
    R* pq = rstd.data<R>();
    norm_forward(rows, C, [=](std::int64_t r) {
      const std::int64_t at = r * C;
      const T* res = row_or_null(pr, at);
      T* s = row_or_null(ps, at);
      if constexpr (std::is_same_v<T, double>)
        forward_f64(px + at, res, pw, eps, s, py + at, C, pq + r);
      else
        simd().of<T>().rms_norm(px + at, res, pw, nullptr, static_cast<float>(eps), s, py + at, C,
                                nullptr, pq + r);
    });
  });
}

void rms_norm_bwd(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& rstd,
                  const Tensor& dsum, const Tensor& partials, const Tensor& dx,
                  const Tensor& dweight) {
  const std::int64_t rows = rstd.numel(), C = x.dim(-1);
  dispatch_floating(x.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T *px = x.data<T>(), *pdy = dy.data<T>();
    const T *pw = data_or_null<T>(weight), *pds = data_or_null<T>(dsum);
    const R* pq = rstd.data<R>();
    T* pdx = dx.data<T>();
    norm_backward<T>(rows, C, partials, dweight, Tensor(), [=](std::int64_t r, R* dw, R*) {
      const std::int64_t at = r * C;
      const T* ds = row_or_null(pds, at);
      if constexpr (std::is_same_v<T, double>)
        backward_f64(px + at, pdy + at, pw, ds, pq[r], pdx + at, dw, C);
      else
        simd().of<T>().rms_norm_bwd(px + at, pdy + at, pw, ds, 0, pq[r], pdx + at, dw, nullptr, C);
    });
  });
}

}  // namespace weft::cpu
