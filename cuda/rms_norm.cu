#include "weft/core/kernels/rms_norm.h"
#include "weft/cuda/norm_rows.h"

namespace weft::cuda {

void rms_norm_fwd(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                  const Tensor& sum, const Tensor& y, const Tensor& rstd) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using R = Real<T>;
    norm_forward<false, T>({.rows = rstd.numel(),
                            .C = x.dim(-1),
                            .x = x.data<T>(),
                            .residual = data_or_null<T>(residual),
                            .weight = data_or_null<T>(weight),
                            .bias = nullptr,
                            .eps = static_cast<R>(eps),
                            .sum = data_or_null<T>(sum),
                            .y = y.data<T>(),
                            .mean = nullptr,
                            .rstd = rstd.data<R>()});
  });
}

void rms_norm_bwd(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& rstd,
                  const Tensor& dsum, const Tensor& partials, const Tensor& dx,
                  const Tensor& dweight) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using R = Real<T>;
    norm_backward<false, T>({.rows = rstd.numel(),
                             .C = x.dim(-1),
                             .x = x.data<T>(),
                             .dy = dy.data<T>(),
                             .weight = data_or_null<T>(weight),
                             .dsum = data_or_null<T>(dsum),
                             .mean = nullptr,
                             .rstd = rstd.data<R>(),
                             .dx = dx.data<T>()},
                            partials, dweight, Tensor());
  });
}

}  // namespace weft::cuda
