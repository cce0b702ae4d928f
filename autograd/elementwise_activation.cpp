// Activation functions. An ordinary backward pass computes dx in one fused kernel; if an outer tape
// records, backward uses public ops, so that it can be differentiated again.
#include <cmath>
#include <limits>

#include "weft/autograd/activate_rows.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/elementwise_common.h"
#include "weft/autograd/fp8_rows.h"

namespace weft {

using namespace detail;

namespace {

Tensor fused(const Tensor& saved, const Tensor& dy, BinaryOp op) {
  return run_binary(saved, dy, op, saved.shape());
}

// x for a slope of several steps, which 16 bits would round at each and f16 may not hold.
Tensor wide(const Tensor& x) { return is_half(x.dtype()) ? cast(x, DType::f32) : x; }

// d gelu_tanh / dx by the product rule; u is the argument of the tanh.
Tensor gelu_tanh_slope(const Tensor& x) {
  constexpr double kScale = 0.79788456080286535588, kCubic = 0.044715;
  const Tensor x2 = square(x);
  const Tensor t = tanh(mul(mul(x, add(mul(x2, kCubic), 1)), kScale));
  const Tensor du = mul(add(mul(x2, 3 * kCubic), 1), kScale);
  return add(mul(add(t, 1), 0.5), mul(mul(mul(x, 0.5), sub(1, square(t))), du));
}

// dy * gelu_erf'(x). It is an op of its own because no public op computes the normal distribution
// function; its derivative gelu_erf''(x) = density(x) (2 - x^2) does not need that function.
Tensor gelu_erf_grad(const Tensor& x, const Tensor& dy) {
  Tensor dx = fused(x, dy, BinaryOp::gelu_erf_bwd);
  if (recording(x, dy))
    Tape::record("gelu_backward", {&x, &dy}, {&dx},
                 [sx = save(x), sdy = save(dy, "dy")](Backward& g) {
                   constexpr double kInverseSqrt2Pi = 0.39894228040143267794;
                   const Tensor& saved = sx.get();
                   if (g.needs(0)) {
                     const Tensor x2 = square(wide(saved));
                     const Tensor density = mul(exp(mul(x2, -0.5)), kInverseSqrt2Pi);
                     const Tensor slope = cast(mul(density, sub(2, x2)), saved.dtype());
                     g.add(0, mul(mul(g.dy(), sdy.get()), slope));
                   }
                   if (g.needs(1)) g.add(1, gelu_erf_grad(saved, g.dy()));
                 });
  return dx;
}

}  // namespace

Tensor tanh(const Tensor& x) {
  check_floating("tanh", x);
  Tensor y = run_unary(x, UnaryOp::tanh);
  if (recording(x))
    Tape::record("tanh", {&x}, {&y}, [s = save(y, "y")](Backward& g) {
      const Tensor& t = s.get();
      g.add(0, Tape::current() ? mul(g.dy(), sub(1, square(t)))
                               : fused(t, g.dy(), BinaryOp::tanh_bwd));
    });
  return y;
}

Tensor sigmoid(const Tensor& x) {
  check_floating("sigmoid", x);
  Tensor y = run_unary(x, UnaryOp::sigmoid);
  if (recording(x))
    Tape::record("sigmoid", {&x}, {&y}, [s = save(y, "y")](Backward& g) {
      const Tensor& p = s.get();
      g.add(0, Tape::current() ? mul(g.dy(), mul(p, sub(1, p)))
                               : fused(p, g.dy(), BinaryOp::sigmoid_bwd));
    });
  return y;
}

Tensor relu(const Tensor& x) {
  check_numeric("relu", x);
  Tensor y = run_unary(x, UnaryOp::relu);
  if (recording(x))
    Tape::record("relu", {&x}, {&y}, [s = save(y, "y")](Backward& g) {
      // y > 0 exactly if x > 0, and the next layer saves y anyway. A NaN passes, as forward.
      const Tensor& saved = s.get();
      g.add(0, Tape::current() ? where(le(saved, 0), zero_of(saved), g.dy())
                               : fused(saved, g.dy(), BinaryOp::relu_bwd));
    });
  return y;
}

Tensor gelu(const Tensor& x, Gelu form) {
  check_floating("gelu", x);
  const bool erf = form == Gelu::erf, recorded = recording(x);
  Tensor y;
  const RoundedRows rounded = x.is_contiguous() ? fp8::rows_for(x, recorded) : RoundedRows();
  if (rounded.wanted()) {
    y = empty_like(x);
    activate_rows(x, erf ? ScaledKind::gelu_erf : ScaledKind::gelu_tanh, y, rounded);
  } else {
    y = run_unary(x, erf ? UnaryOp::gelu_erf : UnaryOp::gelu_tanh);
  }
  if (!recorded) return y;
  Tape::record("gelu", {&x}, {&y}, [s = save(x), erf](Backward& g) {
    const Tensor& saved = s.get();
    g.add(0, erf               ? gelu_erf_grad(saved, g.dy())
             : Tape::current() ? mul(g.dy(), cast(gelu_tanh_slope(wide(saved)), saved.dtype()))
                               : fused(saved, g.dy(), BinaryOp::gelu_tanh_bwd));
  });
  fp8::remember_rows(y, rounded);
  return y;
}

Tensor softplus(const Tensor& x) {
  check_floating("softplus", x);
  Tensor y = run_unary(x, UnaryOp::softplus);
  if (recording(x))
    Tape::record("softplus", {&x}, {&y},
                 [s = save(x)](Backward& g) { g.add(0, mul(g.dy(), sigmoid(s.get()))); });
  return y;
}

Tensor leaky_relu(const Tensor& x, double slope) {
  check_floating("leaky_relu", x);
  return where(gt(x, 0), x, mul(x, slope));
}

Tensor elu(const Tensor& x, double alpha) {
  check_floating("elu", x);
  // e^x of a large x would be infinite, and its gradient 0 * infinity.
  const Tensor below = clamp(x, -std::numeric_limits<double>::infinity(), 0);
  return where(gt(x, 0), x, mul(expm1(below), alpha));
}

Tensor silu(const Tensor& x) {
  check_floating("silu", x);
  Tensor y = run_unary(x, UnaryOp::silu);
  if (recording(x))
    Tape::record("silu", {&x}, {&y}, [s = save(x)](Backward& g) {
      const Tensor& saved = s.get();
      if (!Tape::current()) {
        g.add(0, fused(saved, g.dy(), BinaryOp::silu_bwd));
        return;
      }
      const Tensor v = wide(saved), p = sigmoid(v);
      g.add(0, mul(g.dy(), cast(mul(p, add(mul(v, sub(1, p)), 1)), saved.dtype())));
    });
  return y;
}

}  // namespace weft
