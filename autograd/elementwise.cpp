// Binary arithmetic: tensor with tensor, tensor with number.
#include "weft/autograd/elementwise.h"

#include <limits>

#include "weft/autograd/elementwise_common.h"
#include "weft/autograd/view.h"
#include "weft/core/numbers.h"

namespace weft {

using namespace detail;

namespace {

Tensor arithmetic(const char* name, const Tensor& a, const Tensor& b, BinaryOp op) {
  check_pair(name, a, b);
  if (has_8_bits(a)) return arithmetic(name, cast(a, DType::f32), cast(b, DType::f32), op);
  check_numeric(name, a.dtype());
  return run_binary(a, b, op, common_shape(name, a, b));
}

Tensor floating(const char* name, const Tensor& a, const Tensor& b, BinaryOp op) {
  check_pair(name, a, b);
  if (has_8_bits(a)) return floating(name, cast(a, DType::f32), cast(b, DType::f32), op);
  check_floating(name, a.dtype());
  return run_binary(a, b, op, common_shape(name, a, b));
}

// A number, unlike an element, is known before anything is computed.
void check_divisor(const char* name, DType dtype, double value) {
  check_element(name, dtype, value);
  check(value != 0 || is_compute(dtype), "{}: b must not be 0 for a tensor of {}, got 0", name,
        dtype);
}

Tensor arithmetic(const char* name, const Tensor& a, double value, BinaryOp op,
                  bool reversed = false) {
  check_tensor(name, reversed ? "b" : "a", a);
  if (has_8_bits(a)) return arithmetic(name, cast(a, DType::f32), value, op, reversed);
  check_numeric(name, a.dtype());
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (op == BinaryOp::maximum)
    check_bounds(name, a.dtype(), value, kInfinity);
  else if (op == BinaryOp::minimum)
    check_bounds(name, a.dtype(), -kInfinity, value);
  else if (op == BinaryOp::floor_divide || op == BinaryOp::remainder)
    check_divisor(name, a.dtype(), value);
  else
    check_operand(name, a.dtype(), value);
  return run_scalar(a, value, op, reversed);
}

// An operand's gradient: dy where it was selected, half of it at a tie, 0 where it was not.
Tensor share(const Tensor& dy, const Tensor& won, const Tensor& lost) {
  return where(won, dy, where(lost, zero_of(dy), mul(dy, 0.5)));
}

Tensor extremum(const char* name, const Tensor& a, const Tensor& b, BinaryOp op) {
  Tensor y = arithmetic(name, a, b, op);
  if (recording(a, b))
    Tape::record(
        name, {&a, &b}, {&y},
        [sa = save(a, "a"), sb = save(b, "b"), larger = op == BinaryOp::maximum](Backward& g) {
          const Tensor &x = sa.get(), &z = sb.get();
          const Tensor of_x = larger ? gt(x, z) : lt(x, z), of_z = larger ? lt(x, z) : gt(x, z);
          if (g.needs(0)) g.add(0, to_operand(share(g.dy(), of_x, of_z), x.shape()));
          if (g.needs(1)) g.add(1, to_operand(share(g.dy(), of_z, of_x), z.shape()));
        });
  return y;
}

Tensor extremum(const char* name, const Tensor& a, double b, BinaryOp op) {
  Tensor y = arithmetic(name, a, b, op);
  if (recording(a))
    Tape::record(
        name, {&a}, {&y}, [s = save(a, "a"), b, larger = op == BinaryOp::maximum](Backward& g) {
          // A comparison would round b to 16 bits, but the forward pass does not round it.
          const Tensor& saved = s.get();
          const Tensor x = is_half(saved.dtype()) ? saved.detach().to(DType::f32) : saved;
          g.add(0, larger ? share(g.dy(), gt(x, b), lt(x, b)) : share(g.dy(), lt(x, b), gt(x, b)));
        });
  return y;
}

// dy / b * y for f16: either order of the two factors may leave the range where the product does
// not.
Tensor f16_slope(const Tensor& dy, const Tensor& b, const Tensor& y) {
  const Tensor wide = mul(div(cast(dy, DType::f32), cast(b, DType::f32)), cast(y, DType::f32));
  return cast(wide, DType::f16);
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
                   const Tensor &z = sb.get(), &ratio = sy.get();
                   const bool shares = g.dy().dtype() != DType::f16;  // both slopes the quotient
                   const Tensor dyz = shares || g.needs(0) ? div(g.dy(), z) : Tensor();
                   if (g.needs(0)) g.add(0, to_operand(dyz, sa));
                   if (!g.needs(1)) return;
                   const Tensor slope = shares ? mul(dyz, ratio) : f16_slope(g.dy(), z, ratio);
                   g.add(1, neg(to_operand(slope, z.shape())));
                 });
  return y;
}

Tensor floor_divide(const Tensor& a, const Tensor& b) {
  return arithmetic("floor_divide", a, b, BinaryOp::floor_divide);
}

Tensor remainder(const Tensor& a, const Tensor& b) {
  Tensor y = arithmetic("remainder", a, b, BinaryOp::remainder);
  if (recording(a, b))
    Tape::record("remainder", {&a, &b}, {&y}, [sa = save(a, "a"), sb = save(b, "b")](Backward& g) {
      const Tensor &x = sa.get(), &z = sb.get();
      if (g.needs(0)) g.add(0, to_operand(g.dy(), x.shape()));
      if (g.needs(1)) g.add(1, neg(to_operand(mul(g.dy(), floor_divide(x, z)), z.shape())));
    });
  return y;
}

Tensor pow(const Tensor& a, const Tensor& b) {
  Tensor y = floating("pow", a, b, BinaryOp::pow);
  if (recording(a, b))
    Tape::record("pow", {&a, &b}, {&y},
                 [sa = save(a, "a"), sb = save(b, "b"), sy = save(y, "y")](Backward& g) {
                   const Tensor &x = sa.get(), &z = sb.get(), &power = sy.get();
                   const Tensor zero = zero_of(x), one = Tensor::ones({}, x.dtype(), x.device());
                   // Where the slope is 0, where() selects 0 and the formula gets operands at which
                   // it and its derivatives are finite: else 0 * infinity would give NaN.
                   if (g.needs(0)) {
                     const Tensor constant = eq(z, 0);  // a^0
                     const Tensor e = where(constant, one, z);
                     const Tensor dx = mul(g.dy(), mul(e, pow(x, sub(e, 1))));
                     g.add(0, to_operand(where(constant, zero, dx), x.shape()));
                   }
                   if (g.needs(1)) {
                     // 0^b for b >= 0, and results that underflow to 0.
                     const Tensor value = power.detach();
                     const Tensor at_0 = where(eq(z, 0), x.detach(), one);
                     const Tensor constant = eq(where(eq(value, 0), value, at_0), 0);
                     const Tensor dz = mul(g.dy(), mul(power, log(where(constant, one, x))));
                     g.add(1, to_operand(where(constant, zero, dz), z.shape()));
                   }
                 });
  return y;
}

Tensor minimum(const Tensor& a, const Tensor& b) {
  return extremum("minimum", a, b, BinaryOp::minimum);
}
Tensor maximum(const Tensor& a, const Tensor& b) {
  return extremum("maximum", a, b, BinaryOp::maximum);
}
Tensor minimum(const Tensor& a, double b) { return extremum("minimum", a, b, BinaryOp::minimum); }
Tensor maximum(const Tensor& a, double b) { return extremum("maximum", a, b, BinaryOp::maximum); }

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
  check_tensor("div", "a", a);
  if (has_8_bits(a)) return div(cast(a, DType::f32), b);
  check_floating("div", a.dtype());
  Tensor y = run_scalar(a, b, BinaryOp::div);
  if (recording(a)) Tape::record("div", {&a}, {&y}, [b](Backward& g) { g.add(0, div(g.dy(), b)); });
  return y;
}

Tensor div(double a, const Tensor& b) {
  check_tensor("div", "b", b);
  if (has_8_bits(b)) return div(a, cast(b, DType::f32));
  check_floating("div", b.dtype());
  Tensor y = run_scalar(b, a, BinaryOp::div, true);
  if (recording(b))
    Tape::record("div", {&b}, {&y}, [sb = save(b, "b"), sy = save(y, "y")](Backward& g) {
      const Tensor &dy = g.dy(), &z = sb.get();
      g.add(0,
            neg(dy.dtype() == DType::f16 ? f16_slope(dy, z, sy.get()) : mul(div(dy, z), sy.get())));
    });
  return y;
}

Tensor floor_divide(const Tensor& a, double b) {
  return arithmetic("floor_divide", a, b, BinaryOp::floor_divide);
}

Tensor remainder(const Tensor& a, double b) {
  Tensor y = arithmetic("remainder", a, b, BinaryOp::remainder);
  if (recording(a)) Tape::record("remainder", {&a}, {&y}, [](Backward& g) { g.add(0, g.dy()); });
  return y;
}

Tensor pow(const Tensor& a, double exponent) {
  check_floating("pow", a, "a");
  Tensor y = run_scalar(a, exponent, BinaryOp::pow);
  if (recording(a))
    Tape::record("pow", {&a}, {&y}, [s = save(a, "a"), exponent](Backward& g) {
      const Tensor& x = s.get();
      // a^0 is constant; at a = 0 the formula would give 0 * infinity.
      g.add(0, exponent == 0 ? zeros_like(x) : mul(g.dy(), mul(pow(x, exponent - 1), exponent)));
    });
  return y;
}

}  // namespace weft
