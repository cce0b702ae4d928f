#pragma once
#include <cmath>

#include "weft/tests/generated/rng.h"

namespace weft::generated {

/// A value with its derivatives in two directions s and t, and the mixed second derivative (a
/// hyper-dual number). Evaluating a program on these numbers gives the products of its gradient and
/// its Hessian with fixed directions exactly, without a step size or a backward pass.
/// Source: Fike, Alonso 2011, "The Development of Hyper-Dual Numbers"
struct Number {
  double v = 0, s = 0, t = 0, st = 0;
  /// Moved from a leaf or a constant, so the same in every dtype: comparisons may find it equal.
  bool exact = true;
  Number() = default;
  Number(double value) : v(value) {}
  Number(double value, double along_s, double along_t, double along_both)
      : v(value), s(along_s), t(along_t), st(along_both), exact(false) {}
};
/// Without derivatives, as after detach().
inline Number still(const Number& n) {
  Number y = n.v;
  y.exact = n.exact;
  return y;
}

/// While an object exists, every result of the arithmetic below changes by a relative error of up
/// to `eps`, as if it were rounded. Results that change more than others are ill-conditioned.
/// Source: Vignes 1993, "A stochastic arithmetic for reliable scientific computation" (CESTAC)
class RandomRounding {
 public:
  RandomRounding(double eps, std::uint64_t seed) : rng_{seed}, eps_(eps), outer_(current) {
    current = this;
  }
  ~RandomRounding() { current = outer_; }
  RandomRounding(const RandomRounding&) = delete;
  void round(double& x) { x *= 1 + eps_ * rng_.uniform(-1, 1); }
  static inline RandomRounding* current = nullptr;

 private:
  Rng rng_;
  double eps_;
  RandomRounding* outer_;
};
inline Number rounded(Number n) {
  if (RandomRounding::current)
    for (double* part : {&n.v, &n.s, &n.t, &n.st}) RandomRounding::current->round(*part);
  return n;
}

/// f(x) from the value and the two derivatives of f.
inline Number chain(const Number& x, double f, double f1, double f2) {
  return rounded({f, f1 * x.s, f1 * x.t, f1 * x.st + f2 * x.s * x.t});
}

inline Number operator+(const Number& a, const Number& b) {
  return rounded({a.v + b.v, a.s + b.s, a.t + b.t, a.st + b.st});
}
inline Number operator-(const Number& a, const Number& b) {
  return rounded({a.v - b.v, a.s - b.s, a.t - b.t, a.st - b.st});
}
inline Number operator-(Number n) {  // exact
  for (double* part : {&n.v, &n.s, &n.t, &n.st}) *part = -*part;
  return n;
}
inline Number operator*(const Number& a, const Number& b) {
  return rounded({a.v * b.v, a.s * b.v + a.v * b.s, a.t * b.v + a.v * b.t,
                  a.st * b.v + a.s * b.t + a.t * b.s + a.v * b.st});
}
// Near a pole rounding decides the result: returns NaN, so that programs avoid it. In bf16 a
// difference of numbers of size 1 is 0 that is not 0 in double.
inline double pole_width = 1e-4;
inline bool near_pole(const Number& x) { return std::abs(x.v) < pole_width; }

inline Number reciprocal(const Number& x) {
  if (near_pole(x)) return std::nan("");
  return chain(x, 1 / x.v, -1 / (x.v * x.v), 2 / (x.v * x.v * x.v));
}
inline Number operator/(const Number& a, const Number& b) { return a * reciprocal(b); }

inline Number exp(const Number& x) {
  const double e = std::exp(x.v);
  return chain(x, e, e, e);
}
inline Number log(const Number& x) {
  if (near_pole(x)) return std::nan("");
  const double s = x.s / x.v, t = x.t / x.v;  // x.v squared may overflow
  return rounded({std::log(x.v), s, t, x.st / x.v - s * t});
}
inline Number power(const Number& x, double p) {
  if (near_pole(x) && (p < 0 || p != std::trunc(p))) return std::nan("");
  return chain(x, std::pow(x.v, p), p == 0 ? 0 : p * std::pow(x.v, p - 1),
               p == 0 || p == 1 ? 0 : p * (p - 1) * std::pow(x.v, p - 2));
}
inline Number sqrt(const Number& x) { return power(x, 0.5); }
// The slopes of tanh and sigmoid are computed from the rounded result.
inline Number tanh(const Number& x) {
  const double y = rounded(std::tanh(x.v)).v, slope = 1 - y * y;
  return chain(x, y, slope, -2 * y * slope);
}
inline Number sigmoid(const Number& x) {
  const double y = rounded(1 / (1 + std::exp(-x.v))).v, slope = y * (1 - y);
  return chain(x, y, slope, slope * (1 - 2 * y));
}
inline Number softplus(const Number& x) {
  const double slope = sigmoid(x.v).v;
  const double y = std::log1p(std::exp(-std::abs(x.v))) + (x.v > 0 ? x.v : 0);
  return chain(x, y, slope, slope * (1 - slope));
}
inline Number erf(const Number& x) {
  const double slope = 1.1283791670955126 * std::exp(-x.v * x.v);
  return chain(x, std::erf(x.v), slope, -2 * x.v * slope);
}
inline Number silu(const Number& x) { return x * sigmoid(x); }
inline Number gelu(const Number& x, bool erf_form) {
  const Number inner = erf_form ? erf(x * 0.70710678118654752)
                                : tanh((x + x * x * x * 0.044715) * 0.79788456080286536);
  return x * 0.5 * (Number(1) + inner);
}

}  // namespace weft::generated
