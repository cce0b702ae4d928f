#include "weft/autograd/router_gate.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/core/gemm.h"

namespace weft {
namespace {

void check_gate(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const char* op = "router_logits";
  detail::check_tensor(op, "x", x);
  detail::check_tensor(op, "weight", weight);
  if (!is_compute(x.dtype())) throw_bad_dtype(op, x.dtype(), kFloatingNames);
  check(x.ndim() == 2, "{}: x must have shape [tokens, hidden], got {}", op, x.shape());
  check(weight.ndim() == 2 && weight.dim(1) == x.dim(1),
        "{}: weight must have shape [experts, {}] (last axis of x {}), got {}", op, x.dim(1),
        x.shape(), weight.shape());
  const auto like_x = [&](const char* label, const Tensor& t) {
    check(t.dtype() == x.dtype(), "{}: {} must have dtype {} like x, got {}", op, label, x.dtype(),
          t.dtype());
    check(t.device() == x.device(), "{}: {} must be on device {} like x, got {}", op, label,
          x.device(), t.device());
  };
  like_x("weight", weight);
  if (!bias.defined()) return;
  const Shape experts{weight.dim(0)};
  check(bias.shape() == experts, "{}: bias must have shape {} (rows of weight {}), got {}", op,
        experts, weight.shape(), bias.shape());
  like_x("bias", bias);
}

}  // namespace

Tensor router_logits(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_gate(x, weight, bias);
  const DType dtype = x.dtype();
  const bool rounds = is_half(dtype) || (dtype == DType::f32 && cuda::tf32_allowed());
  if (!rounds) return linear(x, weight, bias);
  Tensor y = Tensor::empty({x.dim(0), weight.dim(0)}, DType::f32, x.device());
  {
    const NoGradGuard quiet;
    const cuda::NoTf32Scope exact;
    gemm(x, transposed(weight), y);
    if (bias.defined()) y = add(y, cast(bias, DType::f32));
  }
  if (recording(x, weight, bias))
    Tape::record("router_logits", {&x, &weight, &bias}, {&y},
                 [sx = save(x), sw = save(weight, "weight"), dtype](Backward& b) {
                   const cuda::NoTf32Scope exact;
                   const Tensor &dy = b.dy(), &w = sw.get();
                   if (b.needs(0)) b.add(0, cast(matmul(dy, cast(w, DType::f32)), dtype));
                   if (b.needs(1)) {
                     const Tensor wide = cast(sx.get(), DType::f32);
                     if (const GradientSum sum = b.accumulator(1, w.shape(), DType::f32);
                         sum.to.defined())
                       gemm(transposed(dy), wide, sum.to, sum.adds);
                     else
                       b.add(1, cast(matmul(transpose(dy, 0, 1), wide), dtype));
                   }
                   if (b.needs(2)) b.add_wide(2, sum(dy, {0}), dtype);
                 });
  return y;
}

}  // namespace weft
