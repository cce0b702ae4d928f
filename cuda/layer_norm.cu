#include "weft/core/kernels/layer_norm.h"
#include "weft/cuda/norm_rows.h"

namespace weft::cuda {

void layer_norm_fwd(const Tensor& x, const Tensor& residual, const Tensor& weight,
                    const Tensor& bias, double eps, const Tensor& sum, const Tensor& y,
                    const Tensor& mean, const Tensor& rstd) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using R = Real<T>;
    norm_forward<true, T>({.rows = mean.numel(),
                           .C = x.dim(-1),
                           .x = x.data<T>(),
                           .residual = data_or_null<T>(residual),
                           .weight = data_or_null<T>(weight),
                           .bias = data_or_null<T>(bias),
                           .eps = static_cast<R>(eps),
                           .sum = data_or_null<T>(sum),
                           .y = y.data<T>(),
                           .mean = mean.data<R>(),
                           .rstd = rstd.data<R>()});
  });
}

void layer_norm_bwd(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& mean,
                    const Tensor& rstd, const Tensor& dsum, const Tensor& partials,
                    const Tensor& dx, const Tensor& dweight, const Tensor& dbias) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using R = Real<T>;
    norm_backward<true, T>({.rows = mean.numel(),
                            .C = x.dim(-1),
                            .x = x.data<T>(),
                            .dy = dy.data<T>(),
                            .weight = data_or_null<T>(weight),
                            .dsum = data_or_null<T>(dsum),
                            .mean = mean.data<R>(),
                            .rstd = rstd.data<R>(),
                            .dx = dx.data<T>()},
                           partials, dweight, dbias);
  });
}

}  // namespace weft::cuda
