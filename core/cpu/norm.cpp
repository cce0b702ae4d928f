#include "weft/core/kernels/norm.h"

#include <cmath>

#include "weft/core/cpu/fp8_values.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// One row in f64, in plain loops: the definition that the tests compare the SIMD rows with
// (core/cpu/simd/norm.inc, for f32 and bf16).
void layer_norm_f64(const double* x, const double* residual, const double* weight,
                    const double* bias, double eps, double* sum, double* y, std::int64_t C,
                    double* mean, double* rstd) {
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

void layer_norm_bwd_f64(const double* x, const double* dy, const double* weight, const double* dsum,
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

void rms_norm_f64(const double* x, const double* residual, const double* weight,
                  double weight_offset, double eps, double* sum, double* y, std::int64_t C,
                  double* rstd) {
  if (residual) {
    for (std::int64_t c = 0; c < C; ++c) sum[c] = x[c] + residual[c];
    x = sum;
  }
  double squares = 0;
  for (std::int64_t c = 0; c < C; ++c) squares += x[c] * x[c];
  *rstd = 1 / std::sqrt(squares / static_cast<double>(C) + eps);
  for (std::int64_t c = 0; c < C; ++c)
    y[c] = x[c] * *rstd * (weight ? weight[c] + weight_offset : 1);
}

void rms_norm_bwd_f64(const double* x, const double* dy, const double* weight, double weight_offset,
                      const double* dsum, double rstd, double* dx, double* dweight,
                      std::int64_t C) {
  double mean_gx = 0;  // of g xhat with g = dy gain
  const auto g_at = [=](std::int64_t c) {
    return weight ? dy[c] * (weight[c] + weight_offset) : dy[c];
  };
  for (std::int64_t c = 0; c < C; ++c) mean_gx += g_at(c) * x[c] * rstd / static_cast<double>(C);
  for (std::int64_t c = 0; c < C; ++c) {
    const double xhat = x[c] * rstd, g = g_at(c);
    dx[c] = (g - xhat * mean_gx) * rstd + (dsum ? dsum[c] : 0);
    if (dweight) dweight[c] += dy[c] * xhat;
  }
}

constexpr std::int64_t kWork = 4;  // per element, for parallel_for

template <bool kCentred>
void forward(const NormFwdIn& in, const NormFwdOut& out) {
  const std::int64_t rows = out.rstd.numel(), C = in.x.dim(-1);
  dispatch_floating(in.x.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T *x = in.x.data<T>(), *residual = data_or_null<T>(in.residual);
    const T *weight = data_or_null<T>(in.weight), *bias = data_or_null<T>(in.bias);
    T *sum = data_or_null<T>(out.sum), *y = out.y.data<T>();
    R *mean = data_or_null<R>(out.mean), *rstd = out.rstd.data<R>();
    const RowRounder rounded(out.rounded, C);
    const R eps = static_cast<R>(in.eps), offset = weight_offset<R>(in.weight, in.zero_centered);
    parallel_for(rows, kWork * C, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t at = r * C;
        const T* const res = row_or_null(residual, at);
        T* const s = row_or_null(sum, at);
        R* const m = row_or_null(mean, r);
        if constexpr (!std::is_same_v<T, double>) {
          const auto& row = simd().of<T>();
          (kCentred ? row.layer_norm : row.rms_norm)(x + at, res, weight, offset, bias, eps, s,
                                                     y + at, C, m, rstd + r);
          rounded(y + at, r);
        } else if constexpr (kCentred) {
          layer_norm_f64(x + at, res, weight, bias, eps, s, y + at, C, m, rstd + r);
        } else {
          rms_norm_f64(x + at, res, weight, offset, eps, s, y + at, C, rstd + r);
        }
      }
    });
  });
}

// out[c] = the sum of the chunks, in order, and what out[c] holds if `adds`; does nothing if out is
// null.
template <class R>
void add_chunks(const R* partial, std::int64_t chunks, bool adds, const Tensor& out) {
  if (!out.defined()) return;
  const std::int64_t C = out.numel();
  dispatch_floating(out.dtype(), [&]<class T>() {
    T* to = out.data<T>();
    parallel_for(C, chunks, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        R total = 0;
        for (std::int64_t k = 0; k < chunks; ++k) total += partial[k * C + c];
        to[c] = T(adds ? static_cast<R>(to[c]) + total : total);
      }
    });
  });
}

template <bool kCentred>
void backward(const NormBwdIn& in, const NormBwdOut& out) {
  const std::int64_t rows = in.rstd.numel(), C = in.x.dim(-1), chunks = norm_chunks(rows);
  dispatch_floating(in.x.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T *x = in.x.data<T>(), *dy = in.dy.data<T>();
    const T *weight = data_or_null<T>(in.weight), *dsum = data_or_null<T>(in.dsum);
    const R *mean = data_or_null<R>(in.mean), *rstd = in.rstd.data<R>();
    T* dx = out.dx.data<T>();
    R* const partials = data_or_null<R>(out.partials);
    R* const dweight = out.dweight.defined() ? partials : nullptr;
    const R offset = weight_offset<R>(in.weight, in.zero_centered);
    R* const dbias = out.dbias.defined() ? partials + (dweight ? chunks * C : 0) : nullptr;
    const auto row = [=](std::int64_t r, R* dw, R* db) {
      const std::int64_t at = r * C;
      const T* const ds = row_or_null(dsum, at);
      const R m = mean ? mean[r] : R(0);
      if constexpr (!std::is_same_v<T, double>) {
        const auto& kernels = simd().of<T>();
        (kCentred ? kernels.layer_norm_bwd : kernels.rms_norm_bwd)(
            x + at, dy + at, weight, offset, ds, m, rstd[r], dx + at, dw, db, C);
      } else if constexpr (kCentred) {
        layer_norm_bwd_f64(x + at, dy + at, weight, ds, m, rstd[r], dx + at, dw, db, C);
      } else {
        rms_norm_bwd_f64(x + at, dy + at, weight, offset, ds, rstd[r], dx + at, dw, C);
      }
    };
    parallel_for(chunks, 2 * kWork * C * (rows / chunks + 1),
                 [=](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t k = begin; k < end; ++k) {
                     R *dw = row_or_null(dweight, k * C), *db = row_or_null(dbias, k * C);
                     if (dw) std::fill(dw, dw + C, R(0));
                     if (db) std::fill(db, db + C, R(0));
                     for (std::int64_t r = rows * k / chunks; r < rows * (k + 1) / chunks; ++r)
                       row(r, dw, db);
                   }
                 });
    add_chunks(dweight, chunks, out.adds_weight, out.dweight);
    add_chunks(dbias, chunks, out.adds_bias, out.dbias);
  });
}

}  // namespace

void layer_norm_fwd(const NormFwdIn& in, const NormFwdOut& out) { forward<true>(in, out); }
void layer_norm_bwd(const NormBwdIn& in, const NormBwdOut& out) { backward<true>(in, out); }
void rms_norm_fwd(const NormFwdIn& in, const NormFwdOut& out) { forward<false>(in, out); }
void rms_norm_bwd(const NormBwdIn& in, const NormBwdOut& out) { backward<false>(in, out); }

}  // namespace weft::cpu
