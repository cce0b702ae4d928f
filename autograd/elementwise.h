#pragma once
#include "weft/core/tensor.h"

namespace weft {

// Arithmetic of two tensors, or of a tensor and a number. A number keeps the precision of the
// arithmetic: a bf16 tensor times 0.1 does not round 0.1 to bf16. Integers wrap around, but with an
// integer tensor the number must be whole, finite and in range of the dtype (u8 takes -255 to 255).
// A number is a double, exact up to 2^53; use a tensor for larger integers.

/// a + b, a - b, a * b; minimum and maximum element by element.
///
/// Shapes   a and b broadcast by NumPy's rule; the gradient is summed back to each operand's shape
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8; one dtype for both; a whole number with integers
/// Device   cpu, cuda, meta; both operands on one device
/// Saves    add, sub: nothing; mul, minimum, maximum: a and b
/// Throws   Error on shapes that do not broadcast, mixed or unsupported dtypes, mixed devices; on a
///          number that an integer dtype cannot hold (minimum, maximum: if a result may need it)
/// Source   definition. minimum and maximum propagate NaN. At a tie or a NaN each operand gets half
///          the gradient; otherwise the unselected operand gets exactly 0, even if dy is infinite
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, double b);
Tensor sub(const Tensor& a, double b);
Tensor sub(double a, const Tensor& b);
Tensor mul(const Tensor& a, double b);
Tensor minimum(const Tensor& a, double b);
Tensor maximum(const Tensor& a, double b);

/// a / b, and a to the power b.
///
/// Shapes   a and b broadcast by NumPy's rule; the gradient is summed back to each operand's shape
/// Dtypes   f32, f64, bf16, f16; one dtype for both
/// Device   cpu, cuda, meta; both operands on one device
/// Saves    div: b and the result; pow: a, b and the result (with a number as exponent: a)
/// Throws   Error on shapes that do not broadcast, mixed or unsupported dtypes, mixed devices
/// Source   definition. The gradient of a^0 with respect to a is 0, and that of 0^b with respect to
///          b for b >= 0 (it is -infinity for b < 0)
Tensor div(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, double b);
Tensor div(double a, const Tensor& b);
Tensor pow(const Tensor& a, double exponent);

/// Python's a // b and a % b: the largest whole number that is at most a / b, and what is left,
/// with the sign of b. The quotient passes no gradient.
///
/// Shapes   a and b broadcast by NumPy's rule; the gradient is summed back to each operand's shape
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8; one dtype for both; a whole number with integers
/// Device   cpu, cuda, meta; both operands on one device
/// Saves    floor_divide: nothing; remainder: a and b (with a number: nothing)
/// Throws   Error on shapes that do not broadcast, mixed or unsupported dtypes, mixed devices; with
///          integers on the number 0 and on a number that the dtype cannot hold
/// Source   definition, by the exact remainder. Where b is 0 both are 0 for integers; in floating
///          point the quotient is then that of IEEE 754, and the remainder NaN
Tensor floor_divide(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor floor_divide(const Tensor& a, double b);
Tensor remainder(const Tensor& a, double b);

/// -x, |x|, x * x, and x clamped to [low, high], or to one bound.
///
/// Shapes   x (...)  ->  (...)
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8
/// Device   cpu, cuda, meta
/// Saves    neg: nothing; the others: x
/// Throws   Error on other dtypes; clamp: when low > high, and with integers on a fraction or when
///          no number of the dtype is within [low, high] (an infinite one is no bound); on a bound
///          of NaN
/// Source   definition. abs'(0) = 0; clamp passes the gradient on the closed interval and keeps NaN
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor square(const Tensor& x);
Tensor clamp(const Tensor& x, double low, double high);
Tensor clamp_min(const Tensor& x, double low);
Tensor clamp_max(const Tensor& x, double high);

/// e^x, ln x, the square root and the reciprocal square root.
///
/// Shapes   x (...)  ->  (...)
/// Dtypes   f32, f64, bf16, f16
/// Device   cpu, cuda, meta
/// Saves    log: x; the others: the result
/// Throws   Error on other dtypes
/// Source   definition; outside the domain the result is NaN or infinite, as in IEEE 754
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);

/// sin x and cos x (in radians), ln(1 + x) and e^x - 1 without loss of digits near 0, and the error
/// function.
///
/// Shapes   x (...)  ->  (...)
/// Dtypes   f32, f64, bf16, f16
/// Device   cpu, cuda, meta
/// Saves    x
/// Throws   Error on other dtypes
/// Source   definition; outside the domain the result is NaN or infinite, as in IEEE 754
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor expm1(const Tensor& x);
Tensor erf(const Tensor& x);

/// The nearest whole number below, above, or on either side (of two equally near the even one), and
/// the sign: -1, 0 or 1, 0 for NaN. Constant almost everywhere, so no gradient passes.
///
/// Shapes   x (...)  ->  (...)
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8
/// Device   cpu, cuda, meta
/// Saves    nothing
/// Throws   Error on other dtypes
/// Source   IEEE 754
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);
Tensor sign(const Tensor& x);

enum class Gelu : std::uint8_t { tanh, erf };

/// Activations: tanh, sigmoid 1 / (1 + e^-x), relu max(x, 0), silu x sigmoid(x), softplus
/// ln(1 + e^x), and gelu:
/// x Phi(x) in the erf form, x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) in the tanh form.
///
/// Shapes   x (...)  ->  (...)
/// Dtypes   f32, f64, bf16, f16; relu also i32, i64, u8
/// Device   cpu, cuda, meta
/// Saves    tanh, sigmoid, relu: the result; gelu, silu, softplus: x
/// Throws   Error on other dtypes
/// Source   Hendrycks, Gimpel 2016, arXiv:1606.08415 (gelu, silu). relu'(0) = 0
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor relu(const Tensor& x);
Tensor gelu(const Tensor& x, Gelu form = Gelu::tanh);
Tensor silu(const Tensor& x);
Tensor softplus(const Tensor& x);

/// x where it is above 0, and elsewhere slope * x (leaky_relu) or alpha (e^x - 1) (elu).
///
/// Shapes   x (...)  ->  (...)
/// Dtypes   f32, f64, bf16, f16
/// Device   cpu, cuda, meta
/// Saves    a mask; elu: also x, and its part below 0
/// Throws   Error on other dtypes
/// Source   Clevert et al. 2015, arXiv:1511.07289 (elu). The derivative at 0 is the one from below
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
Tensor elu(const Tensor& x, double alpha = 1);

/// a where condition is true, b elsewhere. The operand that is not selected gets gradient 0.
///
/// Shapes   condition, a and b broadcast by NumPy's rule
/// Dtypes   condition bool; a and b any dtype, one dtype for both
/// Device   cpu, cuda, meta; all on one device
/// Saves    condition
/// Throws   Error on shapes that do not broadcast, mixed dtypes or devices, a non-bool condition
/// Source   definition
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, double b);
Tensor where(const Tensor& condition, double a, const Tensor& b);

/// value where mask is true, x elsewhere.
///
/// Shapes   x (...), mask broadcastable to it  ->  (...)
/// Dtypes   x any, mask bool
/// Device   cpu, cuda, meta; both on one
/// Saves    mask
/// Throws   Error on another mask, and on a number that an integer dtype does not have
/// Source   definition
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

/// Comparisons: ==, !=, <, <=, >, >=. They pass no gradient. With NaN only != is true.
///
/// Shapes   a and b broadcast by NumPy's rule
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8, bool, one dtype for both  ->  bool. A number is
///          rounded to a floating tensor's dtype first, so a tensor filled with 0.1 equals 0.1; it
///          is compared exactly with integers, even 2.5 or 1e300
/// Device   cpu, cuda, meta; both on one device
/// Saves    nothing
/// Throws   Error on shapes that do not broadcast, mixed or unsupported dtypes, mixed devices
/// Source   IEEE 754
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, double b);
Tensor ne(const Tensor& a, double b);
Tensor lt(const Tensor& a, double b);
Tensor le(const Tensor& a, double b);
Tensor gt(const Tensor& a, double b);
Tensor ge(const Tensor& a, double b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return add(a, b); }
inline Tensor operator+(double a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, double b) { return sub(a, b); }
inline Tensor operator-(double a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return mul(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, double b) { return div(a, b); }
inline Tensor operator/(double a, const Tensor& b) { return div(a, b); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
inline Tensor operator<(const Tensor& a, double b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, double b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, double b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, double b) { return ge(a, b); }
inline Tensor operator==(const Tensor& a, double b) { return eq(a, b); }
inline Tensor operator!=(const Tensor& a, double b) { return ne(a, b); }
inline Tensor operator<(double a, const Tensor& b) { return gt(b, a); }
inline Tensor operator<=(double a, const Tensor& b) { return ge(b, a); }
inline Tensor operator>(double a, const Tensor& b) { return lt(b, a); }
inline Tensor operator>=(double a, const Tensor& b) { return le(b, a); }
inline Tensor operator==(double a, const Tensor& b) { return eq(b, a); }
inline Tensor operator!=(double a, const Tensor& b) { return ne(b, a); }

}  // namespace weft
