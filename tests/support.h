#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "weft/autograd/gradcheck.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/random.h"
#include "weft/core/tensor.h"

namespace weft::test {

/// Restores the number of threads and deterministic mode at the end of its scope, also after an
/// exception.
class RestoreThreads {
 public:
  RestoreThreads() = default;
  explicit RestoreThreads(int n) { set_num_threads(n); }
  ~RestoreThreads() {
    set_num_threads(threads_);
    set_deterministic(deterministic_);
  }
  RestoreThreads(const RestoreThreads&) = delete;

 private:
  int threads_ = num_threads();
  bool deterministic_ = deterministic();
};

/// Normal random numbers that depend only on the seed. Integer dtypes get 0 .. 9.
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

/// The same values in strided memory: every second element of the last axis of a wider tensor.
inline Tensor strided(const Tensor& x) {
  if (x.ndim() == 0) return x;
  Shape wide = x.shape();
  wide[wide.size() - 1] *= 2;
  const Tensor big = Tensor::full(wide, 77, x.dtype());
  Shape strides = big.strides();
  strides[strides.size() - 1] = 2;
  const Tensor gaps = big.alias(x.shape(), strides, 0);
  gaps.copy_(x);
  return gaps;
}

/// Relative tolerance for comparing one op in this dtype with f64.
inline double tolerance(DType t) {
  return t == DType::f64 ? 1e-12 : t == DType::f32 ? 2e-5 : t == DType::f16 ? 5e-3 : 2e-2;
}

inline std::vector<double> values(const Tensor& t) {
  std::vector<double> v(static_cast<std::size_t>(t.numel()));
  t.copy_to(v);
  return v;
}

/// Root mean square of the finite elements.
inline double rms(const Tensor& t) {
  double squares = 0, count = 0;
  for (const double v : values(t)) {
    if (!std::isfinite(v)) continue;
    squares += v * v;
    ++count;
  }
  return count > 0 ? std::sqrt(squares / count) : 0;
}

/// "" when all elements agree within tol * max(|want|, scale), else describes the worst one. NaN
/// equals NaN, and infinity equals itself. The scale is min(rms(want), 1): an error must be small
/// relative to the tensor, however small its values are. If larger terms cancel in a result,
/// rounding is relative to them, so the caller passes their size as `terms`.
inline std::string mismatch(const Tensor& got, const Tensor& want, double tol, double terms = 0) {
  if (!(got.shape() == want.shape()))
    return message("shape {} where {} was expected", got.shape(), want.shape());
  const double scale = std::max(terms, std::min(1.0, rms(want)));
  const std::vector<double> a = values(got), b = values(want);
  double most = 0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if ((std::isnan(a[i]) && std::isnan(b[i])) || a[i] == b[i]) continue;
    const double apart = std::abs(a[i] - b[i]), allowed = tol * std::max(scale, std::abs(b[i]));
    if (std::isfinite(b[i]) && apart <= allowed) continue;
    const double excess = std::isfinite(apart) ? apart / allowed : INFINITY;
    if (excess <= most) continue;
    most = excess;
    worst = i;
  }
  if (most == 0) return "";
  return message("element {}: {} where {} was expected, {} times what is allowed", worst, a[worst],
                 b[worst], most);
}

/// Two runs that both produced NaN do not count as equal unless the caller allows NaN.
enum class Nan { refused, allowed };

/// "" when both have the same dtype, shape and bits: 0 differs from -0. All NaNs are equal if
/// allowed.
inline std::string different_bits(const Tensor& a, const Tensor& b, Nan nan = Nan::refused) {
  if (a.dtype() != b.dtype()) return message("dtype {} and {}", a.dtype(), b.dtype());
  if (!(a.shape() == b.shape())) return message("shape {} and {}", a.shape(), b.shape());
  const Tensor x = a.detach().to(kCpu).contiguous(), y = b.detach().to(kCpu).contiguous();
  const std::size_t size = size_of(a.dtype());
  const auto *p = static_cast<const char*>(x.raw()), *q = static_cast<const char*>(y.raw());
  const std::vector<double> v = values(x), w = values(y);
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (std::isnan(v[i]) && nan == Nan::refused) return message("element {} is NaN", i);
    if (std::isnan(v[i]) && std::isnan(w[i])) continue;
    if (std::memcmp(p + i * size, q + i * size, size) == 0) continue;
    if (v[i] == 0 && w[i] == 0) return message("element {}: 0 and -0", i);
    return message("element {}: {} and {}", i, v[i], w[i]);
  }
  return "";
}

/// The message of the Error that f throws, or "no error".
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
