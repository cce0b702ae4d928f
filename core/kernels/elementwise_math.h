#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "weft/core/kernels/elementwise.h"

namespace weft {

// constexpr, so that CUDA kernels can call these functions too.

/// Integer arithmetic wraps around; C++ allows that for unsigned types only.
template <class C>
using Wrapping = typename std::conditional_t<std::is_integral_v<C>, std::make_unsigned<C>,
                                             std::type_identity<C>>::type;

/// v as a C: v itself in floating point; an integer type that is too narrow saturates.
template <class C>
constexpr C nearest(double v) {
  if constexpr (std::is_integral_v<C>) {
    using Limits = std::numeric_limits<C>;
    if (v <= static_cast<double>(Limits::min())) return Limits::min();
    if (v >= static_cast<double>(Limits::max())) return Limits::max();
  }
  return static_cast<C>(v);
}

inline constexpr double kSqrt2OverPi = 0.79788456080286535588;
inline constexpr double kSqrtHalf = 0.70710678118654752440;
inline constexpr double kInverseSqrt2Pi = 0.39894228040143267794;
inline constexpr double kGeluCubic = 0.044715;
/// Beyond this square of x the slope of tanh GELU is 0 or 1 in every dtype. A larger square could
/// overflow, and infinity times 0 is NaN.
inline constexpr double kGeluFlat = 1e8;

/// A number as the second operand of an op. Integer sums and products wrap around, so that -1 is
/// 255 in u8; a bound outside the range must remain a bound.
template <BinaryOp op, class C>
constexpr C number(double v) {
  if constexpr (std::is_integral_v<C> && op != BinaryOp::minimum && op != BinaryOp::maximum)
    return static_cast<C>(nearest<std::int64_t>(v));
  else
    return nearest<C>(v);
}

template <class C>
constexpr C sigmoid_of(C x) {
  return C(1) / (C(1) + std::exp(-x));
}

/// The remainder of C++, with the sign of a. The smallest integer % -1 would overflow; b is not 0.
template <class C>
constexpr C truncated_remainder(C a, C b) {
  if constexpr (!std::is_integral_v<C>)
    return std::fmod(a, b);
  else
    return std::is_signed_v<C> && b == C(-1) ? C(0) : static_cast<C>(a % b);
}

/// Whether the quotient of C++, truncated, is 1 above the floor: then the remainder gets b's sign.
template <class C>
constexpr bool is_above_floor(C rest, C b) {
  return rest != C(0) && (rest < C(0)) != (b < C(0));
}

/// Python's a % b; 0 for an integer b of 0.
template <class C>
constexpr C remainder_of(C a, C b) {
  if (std::is_integral_v<C> && b == C(0)) return C(0);
  const C rest = truncated_remainder(a, b);
  return is_above_floor(rest, b) ? static_cast<C>(rest + b) : rest;
}

/// Python's a // b; 0 for an integer b of 0.
template <class C>
constexpr C floor_quotient(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    using W = Wrapping<C>;
    if (b == C(0)) return C(0);
    if (std::is_signed_v<C> && b == C(-1)) return static_cast<C>(W(0) - W(a));
    return static_cast<C>(a / b - is_above_floor(truncated_remainder(a, b), b));
  } else {
    if (b == C(0)) return a / b;
    const C rest = truncated_remainder(a, b);
    const C whole = std::rint((a - rest) / b) - static_cast<C>(is_above_floor(rest, b));
    return whole == C(0) ? std::copysign(C(0), a / b) : whole;
  }
}

/// The value of a unary op at x.
template <UnaryOp op, class C>
constexpr C apply(C x) {
  using W = Wrapping<C>;
  if constexpr (op == UnaryOp::neg) {
    if constexpr (std::is_integral_v<C>)
      return static_cast<C>(W(0) - W(x));
    else
      return -x;
  } else if constexpr (op == UnaryOp::abs) {
    if constexpr (std::is_unsigned_v<C>)
      return x;
    else if constexpr (std::is_integral_v<C>)
      return x < 0 ? static_cast<C>(W(0) - W(x)) : x;
    else
      return std::abs(x);
  } else if constexpr (op == UnaryOp::relu) {
    return x < C(0) ? C(0) : x;  // keeps NaN
  } else if constexpr (op == UnaryOp::square) {
    return static_cast<C>(W(x) * W(x));
  } else if constexpr (op == UnaryOp::sign) {
    return static_cast<C>((x > C(0)) - (x < C(0)));
  } else if constexpr (takes_integers(op) && std::is_integral_v<C>) {
    return x;  // floor, ceil, round
  } else if constexpr (op == UnaryOp::floor) {
    return std::floor(x);
  } else if constexpr (op == UnaryOp::ceil) {
    return std::ceil(x);
  } else if constexpr (op == UnaryOp::round) {
    return std::rint(x);
  } else if constexpr (op == UnaryOp::sin) {
    return std::sin(x);
  } else if constexpr (op == UnaryOp::cos) {
    return std::cos(x);
  } else if constexpr (op == UnaryOp::log1p) {
    return std::log1p(x);
  } else if constexpr (op == UnaryOp::expm1) {
    return std::expm1(x);
  } else if constexpr (op == UnaryOp::erf) {
    return std::erf(x);
  } else if constexpr (op == UnaryOp::exp) {
    return std::exp(x);
  } else if constexpr (op == UnaryOp::log) {
    return std::log(x);
  } else if constexpr (op == UnaryOp::sqrt) {
    return std::sqrt(x);
  } else if constexpr (op == UnaryOp::rsqrt) {
    return C(1) / std::sqrt(x);
  } else if constexpr (op == UnaryOp::tanh) {
    return std::tanh(x);
  } else if constexpr (op == UnaryOp::sigmoid) {
    return sigmoid_of(x);
  } else if constexpr (op == UnaryOp::silu) {
    return x / (C(1) + std::exp(-x));
  } else if constexpr (op == UnaryOp::softplus) {
    return (x < C(0) ? C(0) : x) + std::log1p(std::exp(x < C(0) ? x : -x));
  } else if constexpr (op == UnaryOp::gelu_tanh) {
    const C u = C(kSqrt2OverPi) * (x + C(kGeluCubic) * x * x * x);
    return C(0.5) * x * (C(1) + std::tanh(u));
  } else {
    static_assert(op == UnaryOp::gelu_erf);
    return C(0.5) * x * (C(1) + std::erf(x * C(kSqrtHalf)));
  }
}

/// The value of a binary op. For the *_bwd ops a is what the forward saved and b is dy.
template <BinaryOp op, class C>
constexpr C apply(C a, C b) {
  using W = Wrapping<C>;
  if constexpr (op == BinaryOp::add) {
    return static_cast<C>(W(a) + W(b));
  } else if constexpr (op == BinaryOp::sub) {
    return static_cast<C>(W(a) - W(b));
  } else if constexpr (op == BinaryOp::mul) {
    return static_cast<C>(W(a) * W(b));
  } else if constexpr (op == BinaryOp::minimum) {
    return a != a || a < b ? a : b;  // a NaN propagates, as in NumPy
  } else if constexpr (op == BinaryOp::maximum) {
    return a != a || a > b ? a : b;
  } else if constexpr (op == BinaryOp::floor_divide) {
    return floor_quotient(a, b);
  } else if constexpr (op == BinaryOp::remainder) {
    return remainder_of(a, b);
  } else if constexpr (op == BinaryOp::div) {
    return a / b;
  } else if constexpr (op == BinaryOp::pow) {
    return std::pow(a, b);
  } else if constexpr (op == BinaryOp::relu_bwd) {
    return a <= C(0) ? C(0) : b;  // keeps NaN
  } else if constexpr (op == BinaryOp::tanh_bwd) {
    return b * (C(1) - a * a);
  } else if constexpr (op == BinaryOp::sigmoid_bwd) {
    return b * a * (C(1) - a);
  } else if constexpr (op == BinaryOp::silu_bwd) {
    const C s = sigmoid_of(a);
    return b * s * (C(1) + a * (C(1) - s));
  } else if constexpr (op == BinaryOp::gelu_tanh_bwd) {
    const C square = a * a < C(kGeluFlat) ? a * a : C(kGeluFlat);
    const C t = std::tanh(C(kSqrt2OverPi) * a * (C(1) + C(kGeluCubic) * square));
    const C du = C(kSqrt2OverPi) * (C(1) + C(3 * kGeluCubic) * square);
    return b * (C(0.5) * (C(1) + t) + C(0.5) * a * (C(1) - t * t) * du);
  } else {
    static_assert(op == BinaryOp::gelu_erf_bwd);
    const C cdf = C(0.5) * (C(1) + std::erf(a * C(kSqrtHalf)));
    const C density = C(kInverseSqrt2Pi) * std::exp(C(-0.5) * a * a);
    return b * (cdf + a * density);
  }
}

/// Whether `a op b` holds.
template <CompareOp op, class C>
constexpr bool holds(C a, C b) {
  if constexpr (op == CompareOp::eq)
    return a == b;
  else if constexpr (op == CompareOp::ne)
    return a != b;
  else if constexpr (op == CompareOp::lt)
    return a < b;
  else if constexpr (op == CompareOp::le)
    return a <= b;
  else if constexpr (op == CompareOp::gt)
    return a > b;
  else
    return a >= b;
}

/// x op value for every x of type T.
template <class T>
struct NumberComparison {
  CompareOp op;
  Compute<T> value;
};

/// Compares with a number as the tensor's dtype would store it. Integers compare exactly: i64 is
/// not rounded to double, and a number that T cannot represent (2.5, 2^70, NaN) is replaced by one
/// that it can, with the same results.
template <class T>
NumberComparison<T> comparison(CompareOp op, double number) {
  if constexpr (!std::is_integral_v<T>) {
    return {op, static_cast<Compute<T>>(T(static_cast<Compute<T>>(number)))};
  } else {
    using Limits = std::numeric_limits<T>;
    const NumberComparison<T> never{CompareOp::lt, Limits::min()};
    const NumberComparison<T> always{CompareOp::ge, Limits::min()};
    if (number != number) return op == CompareOp::ne ? always : never;
    // For integers, x < 2.5 is x < 3, and x <= 2.5 is x <= 2.
    const bool up = op == CompareOp::lt || op == CompareOp::ge;
    const double edge = up ? std::ceil(number) : std::floor(number);
    const bool below = edge < static_cast<double>(Limits::min());
    const bool above = edge >= std::ldexp(1.0, Limits::digits);  // the double after the largest T
    if (op == CompareOp::eq || op == CompareOp::ne) {
      if (below || above || edge != number) return op == CompareOp::ne ? always : never;
    } else if (below || above) {
      const bool smaller = op == CompareOp::lt || op == CompareOp::le;
      return smaller == above ? always : never;
    }
    return {op, static_cast<T>(edge)};
  }
}

}  // namespace weft
