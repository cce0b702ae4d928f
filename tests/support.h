#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "weft/autograd/gradcheck.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/core/tensor.h"

namespace weft::test {

/// Normal random numbers that depend on the seed only. Integer dtypes get 0 .. 9.
inline Tensor random(const Shape& shape, std::uint64_t seed = 1, DType dtype = DType::f64) {
  Tensor x = Tensor::empty(shape, DType::f64);
  if (is_integral(dtype))
    uniform_(x, {seed, 1, 0}, 0, 10);
  else
    normal_(x, {seed, 1, 0});
  return x.to(dtype);
}

/// Uniform in [low, high): for ops with a restricted domain.
inline Tensor random_in(const Shape& shape, double low, double high, std::uint64_t seed = 1,
                        DType dtype = DType::f64) {
  return Tensor(uniform_(Tensor::empty(shape, DType::f64), {seed, 2, 0}, low, high)).to(dtype);
}

/// The same values in memory with gaps: every second element of the last axis of a wider tensor.
inline Tensor strided(const Tensor& x) {
  if (x.ndim() == 0) return x;
  Shape wide = x.shape();
  wide[wide.size() - 1] *= 2;
  const Tensor big = Tensor::full(wide, -77, x.dtype());
  Shape strides = big.strides();
  strides[strides.size() - 1] = 2;
  const Tensor gaps = big.alias(x.shape(), strides, 0);
  gaps.copy_(x);
  return gaps;
}

/// Relative tolerance for comparing one op in this dtype with f64.
inline double tolerance(DType t) { return t == DType::f64 ? 1e-12 : t == DType::f32 ? 2e-5 : 2e-2; }

inline std::vector<double> values(const Tensor& t) {
  std::vector<double> v(static_cast<std::size_t>(t.numel()));
  t.copy_to(v);
  return v;
}

/// "" when all elements agree within tol * max(1, |want|) (NaN agrees with NaN), else a sentence.
inline std::string mismatch(const Tensor& got, const Tensor& want, double tol) {
  if (!(got.shape() == want.shape()))
    return message("shape {} where {} was expected", got.shape(), want.shape());
  const std::vector<double> a = values(got), b = values(want);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;
    if (!(std::abs(a[i] - b[i]) <= tol * std::max(1.0, std::abs(b[i]))))
      return message("element {}: {} where {} was expected", i, a[i], b[i]);
  }
  return "";
}

/// Two runs that both broke are not the same run: a NaN must be asked for.
enum class Nan { refused, allowed };

/// "" when both have the same dtype, shape and bits.
inline std::string different_bits(const Tensor& a, const Tensor& b, Nan nan = Nan::refused) {
  if (a.dtype() != b.dtype()) return message("dtype {} and {}", a.dtype(), b.dtype());
  if (const std::string why = mismatch(a, b, 0); !why.empty()) return why;
  const std::vector<double> v = values(a), w = values(b);
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (std::isnan(v[i]) && nan == Nan::refused) return message("element {} is NaN", i);
    if (std::isnan(v[i])) continue;
    if (std::signbit(v[i]) != std::signbit(w[i])) return message("element {}: 0 and -0", i);
  }
  return "";
}

/// The text of the Error that f throws, or "no error".
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace weft::test
