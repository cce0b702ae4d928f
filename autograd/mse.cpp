#include "weft/autograd/mse.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/reduce.h"
#include "weft/core/error.h"

namespace weft {

Tensor mse_loss(const Tensor& y, const Tensor& target, Reduction reduction) {
  detail::check_tensor("mse_loss", "y", y);
  detail::check_tensor("mse_loss", "target", target);
  check(target.shape() == y.shape(), "mse_loss: target must have y's shape {}, got {}", y.shape(),
        target.shape());
  check(target.dtype() == y.dtype(), "mse_loss: target must have y's dtype {}, got {}", y.dtype(),
        target.dtype());
  check(target.device() == y.device(), "mse_loss: target must be on y's device {}, got {}",
        y.device(), target.device());
  if (!is_compute(y.dtype())) throw_bad_dtype("mse_loss", y.dtype(), "f32, f64, bf16");
  const Tensor error = square(sub(y, target));
  switch (reduction) {
    case Reduction::none:
      return error;
    case Reduction::mean:
      return mean(error);
    case Reduction::sum:
      break;
  }
  return sum(error);
}

}  // namespace weft
