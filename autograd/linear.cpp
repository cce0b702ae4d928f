#include "weft/autograd/linear.h"

#include "weft/autograd/linear_common.h"
#include "weft/autograd/operand.h"
#include "weft/core/error.h"

namespace weft {

using namespace detail;

namespace {

void check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_tensor("linear", "x", x);
  check_tensor("linear", "weight", weight);
  check(x.ndim() >= 1, "linear: x must have at least 1 axis, got shape {}", x.shape());
  if (!is_compute(x.dtype())) throw_bad_dtype("linear", x.dtype(), kFloatingNames);
  check(weight.ndim() == 2 && weight.dim(1) == x.dim(-1),
        "linear: weight must have shape [N, {}] (last axis of x {}), got {}", x.dim(-1), x.shape(),
        weight.shape());
  check(weight.dtype() == x.dtype(), "linear: weight must have the dtype of x, {}, got {}",
        x.dtype(), weight.dtype());
  check(weight.device() == x.device(), "linear: weight must be on the device of x, {}, got {}",
        x.device(), weight.device());
  if (!bias.defined()) return;
  const Shape n{weight.dim(0)};
  check(bias.shape() == n, "linear: bias must have shape {} (rows of weight {}), got {}", n,
        weight.shape(), bias.shape());
  check(bias.dtype() == x.dtype(), "linear: bias must have the dtype of x, {}, got {}", x.dtype(),
        bias.dtype());
  check(bias.device() == x.device(), "linear: bias must be on the device of x, {}, got {}",
        x.device(), bias.device());
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_linear(x, weight, bias);
  Shape shape = x.shape();
  shape[shape.size() - 1] = weight.dim(0);
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  {
    const NoGradGuard quiet;
    gemm_bias(as_matrix(x), weight, bias, as_matrix(y));
  }
  if (recording(x, weight, bias))
    Tape::record("linear", {&x, &weight, &bias}, {&y},
                 [sx = save(x, "x"), sw = save(weight, "weight")](Backward& b) mutable {
                   // x is released, if nothing else owns it, before dx is allocated.
                   if (b.needs(1) || b.needs(2))
                     add_linear_gradients(b, 1, 2, as_matrix(b.dy()), as_matrix(sx.take()));
                   if (b.needs(0)) b.add(0, matmul(b.dy(), sw.get()));
                 });
  return y;
}

}  // namespace weft
