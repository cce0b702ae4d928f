#include "weft/core/kernels/layer_norm.h"

#include <cmath>

#include "weft/core/cpu/norm_rows.h"

namespace weft::cpu {
namespace {

// One row in f64: the definition that the row kernels are measured against.
void forward_f64(const double* x, const double* residual, const double* weight, const double* bias,
                 double eps, double* sum, double* y, std::int64_t C, double* mean, double* rstd) {
  if (residual) {
    for (std::int64_t c = 0; c < C; ++c) sum[c] = x[c] + residual[c];
    x = sum;
  }
  double total = 0, squares = 0;
  for (std::int64_t c = 0; c < C; ++c) total += x[c];
  const double mu = total / static_cast<double>(C);
  for (std::int64_t c = 0; c < C; ++c) squares += (x[c] - mu) * (x[c] - mu);
  const double r = 1 / std::sqrt(squares / static_cast<double>(C) + eps);
  for (std::int64_t c = 0; c < C; ++c)
    y[c] = (x[c] - mu) * r * (weight ? weight[c] : 1) + (bias ? bias[c] : 0);
  *mean = mu;
  *rstd = r;
}

void backward_f64(const double* x, const double* dy, const double* weight, const double* dsum,
                  double mean, double rstd, double* dx, double* dweight, double* dbias,
                  std::int64_t C) {
  double mean_g = 0, mean_gx = 0;  // of g = dy weight, and of g xhat
  for (std::int64_t c = 0; c < C; ++c) {
    const double g = weight ? dy[c] * weight[c] : dy[c];
    mean_g += g / static_cast<double>(C);
    mean_gx += g * (x[c] - mean) * rstd / static_cast<double>(C);
  }
  for (std::int64_t c = 0; c < C; ++c) {
    const double xhat = (x[c] - mean) * rstd, g = weight ? dy[c] * weight[c] : dy[c];
    dx[c] = (g - mean_g - xhat * mean_gx) * rstd + (dsum ? dsum[c] : 0);
    if (dweight) dweight[c] += dy[c] * xhat;
    if (dbias) dbias[c] += dy[c];
  }
}

}  // namespace

void layer_norm_fwd(const Tensor& x, const Tensor& residual, const Tensor& weight,
                    const Tensor& bias, double eps, const Tensor& sum, const Tensor& y,
                    const Tensor& mean, const Tensor& rstd) {
  const std::int64_t rows = mean.numel(), C = x.dim(-1);
  dispatch_floating(x.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T *px = x.data<T>(), *pr = data_or_null<T>(residual);
    const T *pw = data_or_null<T>(weight), *pb = data_or_null<T>(bias);
    T *ps = data_or_null<T>(sum), *py = y.data<T>();
    R *pm = mean.data<R>(), *pq = rstd.data<R>();
    norm_forward(rows, C, [=](std::int64_t r) {
      const std::int64_t at = r * C;
      const T* res = row_or_null(pr, at);
      T* s = row_or_null(ps, at);
      if constexpr (std::is_same_v<T, double>)
        forward_f64(px + at, res, pw, pb, eps, s, py + at, C, pm + r, pq + r);
      else
        simd().of<T>().layer_norm(px + at, res, pw, pb, static_cast<float>(eps), s, py + at, C,
                                  pm + r, pq + r);
    });
  });
}

void layer_norm_bwd(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& mean,
                    const Tensor& rstd, const Tensor& dsum, const Tensor& partials,
                    const Tensor& dx, const Tensor& dweight, const Tensor& dbias) {
  const std::int64_t rows = mean.numel(), C = x.dim(-1);
  dispatch_floating(x.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T *px = x.data<T>(), *pdy = dy.data<T>();
    const T *pw = data_or_null<T>(weight), *pds = data_or_null<T>(dsum);
    const R *pm = mean.data<R>(), *pq = rstd.data<R>();
    T* pdx = dx.data<T>();
    norm_backward<T>(rows, C, partials, dweight, dbias, [=](std::int64_t r, R* dw, R* db) {
      const std::int64_t at = r * C;
      const T* ds = row_or_null(pds, at);
      if constexpr (std::is_same_v<T, double>)
        backward_f64(px + at, pdy + at, pw, ds, pm[r], pq[r], pdx + at, dw, db, C);
      else
        simd().of<T>().layer_norm_bwd(px + at, pdy + at, pw, ds, pm[r], pq[r], pdx + at, dw, db, C);
    });
  });
}

}  // namespace weft::cpu
