#include "weft/autograd/mse.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/loss_common.h"

namespace weft {

Tensor mse_loss(const Tensor& y, const Tensor& target, Reduction reduction) {
  detail::check_loss_pair("mse_loss", "y", y, target);
  return detail::reduced(square(sub(y, target)), reduction);
}

}  // namespace weft
