// Arithmetic of two operands: tensor with tensor, tensor with number.
#include "weft/autograd/elementwise.h"

#include <limits>

#include "weft/autograd/elementwise_common.h"
#include "weft/core/numbers.h"

namespace weft {

using namespace detail;

namespace {

Tensor arithmetic(const char* name, const Tensor& a, const Tensor& b, BinaryOp op) {
  check_pair(name, a, b);
  check_numeric(name, a.dtype());
  return run_binary(a, b, op, common_shape(name, a, b));
}

Tensor floating(const char* name, const Tensor& a, const Tensor& b, BinaryOp op) {
  check_pair(name, a, b);
  check_floating(name, a.dtype());
  return run_binary(a, b, op, common_shape(name, a, b));
}

Tensor arithmetic(const char* name, const Tensor& a, double value, BinaryOp op,
                  bool reversed = false) {
  check_numeric(name, a, reversed ? "b" : "a");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (op == BinaryOp::maximum)
    check_bounds(name, a.dtype(), value, kInfinity);
  else if (op == BinaryOp::minimum)
    check_bounds(name, a.dtype(), -kInfinity, value);
  else
    check_operand(name, a.dtype(), value);
  return run_scalar(a, value, op, reversed);
}

// The share of the gradient that goes to a: 1 where it won, 1/2 at a tie. `direction` is 1 when the
// larger operand wins, -1 when the smaller does.
template <class B>
Tensor winner(const Tensor& a, const B& b, double direction) {
  return add(mul(sign(sub(a, b)), 0.5 * direction), 0.5);
}

Tensor extremum(const char* name, const Tensor& a, const Tensor& b, BinaryOp op, double direction) {
  Tensor y = arithmetic(name, a, b, op);
  if (recording(a, b))
    Tape::record(name, {&a, &b}, {&y},
                 [sa = save(a, "a"), sb = save(b, "b"), direction](Backward& g) {
                   const Tensor &x = sa.get(), &z = sb.get();
                   const Tensor da = mul(g.dy(), winner(x, z, direction));
                   if (g.needs(0)) g.add(0, to_operand(da, x.shape()));
                   if (g.needs(1)) g.add(1, to_operand(sub(g.dy(), da), z.shape()));
                 });
  return y;
}

Tensor extremum(const char* name, const Tensor& a, double b, BinaryOp op, double direction) {
  Tensor y = arithmetic(name, a, b, op);
  if (recording(a))
    Tape::record(name, {&a}, {&y}, [s = save(a, "a"), b, direction](Backward& g) {
      g.add(0, mul(g.dy(), winner(s.get(), b, direction)));
    });
  return y;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  Tensor y = arithmetic("add", a, b, BinaryOp::add);
  if (recording(a, b))
    Tape::record("add", {&a, &b}, {&y}, [sa = a.shape(), sb = b.shape()](Backward& g) {
      if (g.needs(0)) g.add(0, to_operand(g.dy(), sa));
      if (g.needs(1)) g.add(1, to_operand(g.dy(), sb));
    });
  return y;
}

Tensor sub(const Tensor& a, const Tensor& b) {
  Tensor y = arithmetic("sub", a, b, BinaryOp::sub);
  if (recording(a, b))
    Tape::record("sub", {&a, &b}, {&y}, [sa = a.shape(), sb = b.shape()](Backward& g) {
      if (g.needs(0)) g.add(0, to_operand(g.dy(), sa));
      if (g.needs(1)) g.add(1, neg(to_operand(g.dy(), sb)));
    });
  return y;
}

Tensor mul(const Tensor& a, const Tensor& b) {
  Tensor y = arithmetic("mul", a, b, BinaryOp::mul);
  if (recording(a, b))
    Tape::record("mul", {&a, &b}, {&y}, [sa = save(a, "a"), sb = save(b, "b")](Backward& g) {
      const Tensor &x = sa.get(), &z = sb.get();
      if (g.needs(0)) g.add(0, to_operand(mul(g.dy(), z), x.shape()));
      if (g.needs(1)) g.add(1, to_operand(mul(g.dy(), x), z.shape()));
    });
  return y;
}

Tensor div(const Tensor& a, const Tensor& b) {
  Tensor y = floating("div", a, b, BinaryOp::div);
  if (recording(a, b))
    Tape::record("div", {&a, &b}, {&y},
                 [sa = a.shape(), sb = save(b, "b"), sy = save(y, "y")](Backward& g) {
                   const Tensor& z = sb.get();
                   const Tensor dyz = div(g.dy(), z);
                   if (g.needs(0)) g.add(0, to_operand(dyz, sa));
                   if (g.needs(1)) g.add(1, neg(to_operand(mul(dyz, sy.get()), z.shape())));
                 });
  return y;
}

Tensor pow(const Tensor& a, const Tensor& b) {
  Tensor y = floating("pow", a, b, BinaryOp::pow);
  if (recording(a, b))
    Tape::record("pow", {&a, &b}, {&y},
                 [sa = save(a, "a"), sb = save(b, "b"), sy = save(y, "y")](Backward& g) {
                   const Tensor &x = sa.get(), &z = sb.get();
                   const Tensor zero = Tensor::zeros({}, x.dtype(), x.device());
                   if (g.needs(0)) {
                     // a^0 is constant, also at a = 0 where the formula has 0 * infinity.
                     const Tensor slope = where(eq(z, 0), zero, mul(z, pow(x, sub(z, 1))));
                     g.add(0, to_operand(mul(g.dy(), slope), x.shape()));
                   }
                   if (g.needs(1)) {
                     // 0^b is constant for b > 0, where the formula has 0 * log 0.
                     const Tensor slope = where(eq(sy.get(), 0), zero, mul(sy.get(), log(x)));
                     g.add(1, to_operand(mul(g.dy(), slope), z.shape()));
                   }
                 });
  return y;
}

Tensor minimum(const Tensor& a, const Tensor& b) {
  return extremum("minimum", a, b, BinaryOp::minimum, -1);
}
Tensor maximum(const Tensor& a, const Tensor& b) {
  return extremum("maximum", a, b, BinaryOp::maximum, 1);
}
Tensor minimum(const Tensor& a, double b) {
  return extremum("minimum", a, b, BinaryOp::minimum, -1);
}
Tensor maximum(const Tensor& a, double b) {
  return extremum("maximum", a, b, BinaryOp::maximum, 1);
}

Tensor add(const Tensor& a, double b) {
  Tensor y = arithmetic("add", a, b, BinaryOp::add);
  if (recording(a)) Tape::record("add", {&a}, {&y}, [](Backward& g) { g.add(0, g.dy()); });
  return y;
}

Tensor sub(const Tensor& a, double b) {
  Tensor y = arithmetic("sub", a, b, BinaryOp::sub);
  if (recording(a)) Tape::record("sub", {&a}, {&y}, [](Backward& g) { g.add(0, g.dy()); });
  return y;
}

Tensor sub(double a, const Tensor& b) {
  Tensor y = arithmetic("sub", b, a, BinaryOp::sub, true);
  if (recording(b)) Tape::record("sub", {&b}, {&y}, [](Backward& g) { g.add(0, neg(g.dy())); });
  return y;
}

Tensor mul(const Tensor& a, double b) {
  Tensor y = arithmetic("mul", a, b, BinaryOp::mul);
  if (recording(a)) Tape::record("mul", {&a}, {&y}, [b](Backward& g) { g.add(0, mul(g.dy(), b)); });
  return y;
}

Tensor div(const Tensor& a, double b) {
  check_floating("div", a, "a");
  Tensor y = run_scalar(a, b, BinaryOp::div);
  if (recording(a)) Tape::record("div", {&a}, {&y}, [b](Backward& g) { g.add(0, div(g.dy(), b)); });
  return y;
}

Tensor div(double a, const Tensor& b) {
  check_floating("div", b, "b");
  Tensor y = run_scalar(b, a, BinaryOp::div, true);
  if (recording(b))
    Tape::record("div", {&b}, {&y}, [sb = save(b, "b"), sy = save(y, "y")](Backward& g) {
      g.add(0, neg(mul(div(g.dy(), sb.get()), sy.get())));
    });
  return y;
}

Tensor pow(const Tensor& a, double exponent) {
  check_floating("pow", a, "a");
  Tensor y = run_scalar(a, exponent, BinaryOp::pow);
  if (recording(a))
    Tape::record("pow", {&a}, {&y}, [s = save(a, "a"), exponent](Backward& g) {
      // a^0 is constant, also at a = 0 where the formula has 0 * infinity.
      g.add(0, exponent == 0 ? mul(g.dy(), 0)
                             : mul(g.dy(), mul(pow(s.get(), exponent - 1), exponent)));
    });
  return y;
}

}  // namespace weft
