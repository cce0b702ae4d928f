// Unary functions whose derivative needs no fused kernel.
#include <cmath>
#include <limits>
#include <numbers>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/elementwise_common.h"
#include "weft/core/numbers.h"

namespace weft {

using namespace detail;

namespace {

Tensor constant_piece(const char* name, const Tensor& x, UnaryOp op) {
  check_numeric(name, x);
  return run_unary(x, op);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor clamped(const char* name, const Tensor& x, double low, double high) {
  check_bounds(name, x.dtype(), low, high);
  Tensor y = empty_like(x);
  dispatch<cpu::clamp, cuda::clamp>(x, low, high, y);
  if (recording(x))
    Tape::record(name, {&x}, {&y}, [s = save(x), low, high](Backward& g) {
      const Tensor& saved = s.get();
      if (Tape::current()) {
        const Tensor zero = zero_of(saved);
        g.add(0, where(eq(clamp(saved, low, high), saved), g.dy(), zero));
        return;
      }
      Tensor dx = empty_like(saved);
      dispatch<cpu::clamp_bwd, cuda::clamp_bwd>(saved, g.dy(), low, high, dx);
      g.add(0, dx);
    });
  return y;
}

}  // namespace

Tensor neg(const Tensor& x) {
  check_numeric("neg", x);
  Tensor y = run_unary(x, UnaryOp::neg);
  if (recording(x)) Tape::record("neg", {&x}, {&y}, [](Backward& g) { g.add(0, neg(g.dy())); });
  return y;
}

Tensor exp(const Tensor& x) {
  check_floating("exp", x);
  Tensor y = run_unary(x, UnaryOp::exp);
  if (recording(x))
    Tape::record("exp", {&x}, {&y},
                 [s = save(y, "y")](Backward& g) { g.add(0, mul(g.dy(), s.get())); });
  return y;
}

Tensor log(const Tensor& x) {
  check_floating("log", x);
  Tensor y = run_unary(x, UnaryOp::log);
  if (recording(x))
    Tape::record("log", {&x}, {&y}, [s = save(x)](Backward& g) { g.add(0, div(g.dy(), s.get())); });
  return y;
}

Tensor sqrt(const Tensor& x) {
  check_floating("sqrt", x);
  Tensor y = run_unary(x, UnaryOp::sqrt);
  if (recording(x))
    Tape::record("sqrt", {&x}, {&y},
                 [s = save(y, "y")](Backward& g) { g.add(0, div(mul(g.dy(), 0.5), s.get())); });
  return y;
}

Tensor rsqrt(const Tensor& x) {
  check_floating("rsqrt", x);
  Tensor y = run_unary(x, UnaryOp::rsqrt);
  if (recording(x))
    Tape::record("rsqrt", {&x}, {&y}, [s = save(y, "y")](Backward& g) {
      const Tensor& r = s.get();
      g.add(0, mul(mul(g.dy(), -0.5), mul(square(r), r)));
    });
  return y;
}

Tensor abs(const Tensor& x) {
  check_numeric("abs", x);
  Tensor y = run_unary(x, UnaryOp::abs);
  if (recording(x))
    Tape::record("abs", {&x}, {&y}, [s = save(x)](Backward& g) {
      const Tensor& saved = s.get();  // slope 0 at x = 0, even if dy is infinite
      const Tensor zero = zero_of(saved);
      g.add(0, where(eq(saved, 0), zero, mul(g.dy(), sign(saved))));
    });
  return y;
}

Tensor square(const Tensor& x) {
  check_numeric("square", x);
  Tensor y = run_unary(x, UnaryOp::square);
  if (recording(x))
    Tape::record("square", {&x}, {&y},
                 [s = save(x)](Backward& g) { g.add(0, mul(mul(g.dy(), 2), s.get())); });
  return y;
}

Tensor sin(const Tensor& x) {
  check_floating("sin", x);
  Tensor y = run_unary(x, UnaryOp::sin);
  if (recording(x))
    Tape::record("sin", {&x}, {&y},
                 [s = save(x)](Backward& g) { g.add(0, mul(g.dy(), cos(s.get()))); });
  return y;
}

Tensor cos(const Tensor& x) {
  check_floating("cos", x);
  Tensor y = run_unary(x, UnaryOp::cos);
  if (recording(x))
    Tape::record("cos", {&x}, {&y},
                 [s = save(x)](Backward& g) { g.add(0, mul(g.dy(), neg(sin(s.get())))); });
  return y;
}

Tensor log1p(const Tensor& x) {
  check_floating("log1p", x);
  Tensor y = run_unary(x, UnaryOp::log1p);
  if (recording(x))
    Tape::record("log1p", {&x}, {&y},
                 [s = save(x)](Backward& g) { g.add(0, div(g.dy(), add(s.get(), 1))); });
  return y;
}

Tensor expm1(const Tensor& x) {
  check_floating("expm1", x);
  Tensor y = run_unary(x, UnaryOp::expm1);
  if (recording(x))
    // The slope is not y + 1: far below 0 that has lost its digits.
    Tape::record("expm1", {&x}, {&y},
                 [s = save(x)](Backward& g) { g.add(0, mul(g.dy(), exp(s.get()))); });
  return y;
}

Tensor erf(const Tensor& x) {
  check_floating("erf", x);
  Tensor y = run_unary(x, UnaryOp::erf);
  if (recording(x))
    Tape::record("erf", {&x}, {&y}, [s = save(x)](Backward& g) {
      const Tensor slope = mul(exp(neg(square(s.get()))), 2 * std::numbers::inv_sqrtpi);
      g.add(0, mul(g.dy(), slope));
    });
  return y;
}

Tensor floor(const Tensor& x) { return constant_piece("floor", x, UnaryOp::floor); }
Tensor ceil(const Tensor& x) { return constant_piece("ceil", x, UnaryOp::ceil); }
Tensor round(const Tensor& x) { return constant_piece("round", x, UnaryOp::round); }
Tensor sign(const Tensor& x) { return constant_piece("sign", x, UnaryOp::sign); }

Tensor clamp(const Tensor& x, double low, double high) {
  check_numeric("clamp", x);
  check(low <= high, "clamp: low must be at most high, got {} and {}", low, high);
  return clamped("clamp", x, low, high);
}

Tensor clamp_min(const Tensor& x, double low) {
  check_numeric("clamp_min", x);
  check(!std::isnan(low), "clamp_min: low must be a number, got {}", low);
  return clamped("clamp_min", x, low, kInfinity);
}

Tensor clamp_max(const Tensor& x, double high) {
  check_numeric("clamp_max", x);
  check(!std::isnan(high), "clamp_max: high must be a number, got {}", high);
  return clamped("clamp_max", x, -kInfinity, high);
}

}  // namespace weft
