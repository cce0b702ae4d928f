#include "weft/autograd/linear.h"

#include "weft/autograd/matmul.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/gemm.h"

namespace weft {
namespace {

void check_operands(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  detail::check_tensor("linear", "x", x);
  detail::check_tensor("linear", "weight", weight);
  check(x.ndim() >= 1, "linear: x must have at least 1 axis, got shape {}", x.shape());
  if (!is_compute(x.dtype())) throw_bad_dtype("linear", x.dtype(), "f32, f64, bf16");
  check(weight.ndim() == 2 && weight.dim(1) == x.dim(-1),
        "linear: weight must have shape [N, {}] (last axis of x {}), got {}", x.dim(-1), x.shape(),
        weight.shape());
  check(weight.dtype() == x.dtype(), "linear: weight must have the dtype of x, {}, got {}",
        x.dtype(), weight.dtype());
  check(weight.device() == x.device(), "linear: weight must be on the device of x, {}, got {}",
        x.device(), weight.device());
  if (!bias) return;
  const Shape n{weight.dim(0)};
  check(bias.shape() == n, "linear: bias must have shape {} (rows of weight {}), got {}", n,
        weight.shape(), bias.shape());
  check(bias.dtype() == x.dtype(), "linear: bias must have the dtype of x, {}, got {}", x.dtype(),
        bias.dtype());
  check(bias.device() == x.device(), "linear: bias must be on the device of x, {}, got {}",
        x.device(), bias.device());
}

// (..., C) -> (rows, C).
Tensor as_rows(const Tensor& t) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < t.ndim(); ++i) rows *= t.dim(i);
  return reshape(t, {rows, t.dim(-1)});
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_operands(x, weight, bias);
  Shape shape = x.shape();
  shape[shape.size() - 1] = weight.dim(0);
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  {
    const NoGradGuard quiet;
    gemm_bias(as_rows(x), weight, bias, as_rows(y));
  }
  if (recording(x, weight, bias))
    Tape::record("linear", {&x, &weight, &bias}, {&y},
                 [sx = save(x, "x"), sw = save(weight, "weight")](Backward& b) {
                   if (b.needs(0)) b.add(0, matmul(b.dy(), sw.get()));
                   if (!b.needs(1) && !b.needs(2)) return;
                   const Tensor dy = as_rows(b.dy());
                   const Shape whole{dy.dim(1), sx.get().dim(-1)};
                   if (const Tensor sum = b.accumulator(1, whole, dy.dtype(), true))
                     gemm(transposed(dy), as_rows(sx.get()), sum, true);
                   else if (b.needs(1))
                     b.add(1, matmul(transpose(dy, 0, 1), as_rows(sx.get())));
                   if (b.needs(2)) b.add(2, sum(dy, {0}));
                 });
  return y;
}

}  // namespace weft
