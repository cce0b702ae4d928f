#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/cross_entropy.h"
#include "weft/core/kernels/operand.h"

// Functions on one row of logits, shared by the cross-entropy kernels.
namespace weft::cpu::cross_entropy {

// A row is read from memory once, in blocks that stay in the L1 cache during the passes over them.
// The size defines the summation order, so it must not depend on the machine.
inline constexpr std::int64_t kBlock = 2048;

template <class T>
using R = std::conditional_t<std::is_same_v<T, double>, double, float>;

// One block: row kernels where there are some, plain loops for f64.

template <class T>
Real<T> block_max(const T* x, std::int64_t n) {
  if constexpr (!std::is_same_v<T, double>)
    return simd().of<T>().max(x, n);
  else
    return std::accumulate(x, x + n, -HUGE_VAL, [](double m, double v) { return m > v ? m : v; });
}

template <class T>
Real<T> block_sum(const T* x, std::int64_t n) {
  if constexpr (!std::is_same_v<T, double>)
    return simd().of<T>().sum(x, n);
  else
    return std::accumulate(x, x + n, 0.0);
}

// sum of exp(x - shift)
template <class T>
Real<T> block_sum_exp(const T* x, Real<T> shift, std::int64_t n) {
  if constexpr (!std::is_same_v<T, double>)
    return simd().of<T>().sum_exp(x, shift, n);
  else
    return std::accumulate(x, x + n, 0.0,
                           [=](double s, double v) { return s + std::exp(v - shift); });
}

// dx = exp(x - shift) * scale - offset
template <class T>
void block_gradient(const T* x, Real<T> shift, Real<T> scale, Real<T> offset, T* dx,
                    std::int64_t n) {
  if constexpr (!std::is_same_v<T, double>)
    simd().of<T>().cross_entropy_bwd(x, shift, scale, offset, dx, n);
  else
    for (std::int64_t i = 0; i < n; ++i) dx[i] = std::exp(x[i] - shift) * scale - offset;
}

template <class R>
struct RowStats {
  R max = -std::numeric_limits<R>::infinity();
  double exp_sum = 0;  // of exp(x - max)
  double sum = 0;      // of x, for label smoothing
};

template <class T>
RowStats<Real<T>> read_row(const T* x, std::int64_t classes, bool with_sum) {
  using R = Real<T>;
  RowStats<R> s;
  for (std::int64_t at = 0; at < classes; at += kBlock) {
    const std::int64_t n = std::min(kBlock, classes - at);
    const T* block = x + at;
    const R max = std::max(s.max, block_max(block, n));
    if (with_sum) s.sum += static_cast<double>(block_sum(block, n));
    // While everything is -inf there is no mass to add, and -inf - -inf would be NaN. A block that
    // contains a NaN must not be skipped.
    if (max == -std::numeric_limits<R>::infinity() && !std::isnan(block_sum(block, n))) continue;
    if (s.exp_sum != 0)
      s.exp_sum *= std::exp(static_cast<double>(s.max) - static_cast<double>(max));
    s.exp_sum += static_cast<double>(block_sum_exp(block, max, n));
    s.max = max;
  }
  return s;
}

template <class R>
double row_loss(const RowStats<R>& s, double target_logit, std::int64_t classes, double smoothing) {
  if (s.exp_sum == 0) return std::numeric_limits<double>::infinity();
  const double max = static_cast<double>(s.max), log_sum = std::log(s.exp_sum);
  double loss = (1 - smoothing) * (log_sum + (max - target_logit));
  if (smoothing > 0) loss += smoothing * (log_sum + (max - s.sum / static_cast<double>(classes)));
  return loss;
}

// dlogits = dy * (softmax - target distribution), computed in R and rounded to T once. dx may be x.
// The row may be a shard of all_classes; a target outside [0, classes) is then in another shard.
template <class T>
void gradient_row(const T* x, std::int64_t classes, std::int64_t all_classes, std::int64_t target,
                  Real<T> max, Real<T> exp_sum, double dy, double smoothing, T* dx) {
  using R = Real<T>;
  const double spread = smoothing / static_cast<double>(all_classes);
  const bool here = target >= 0 && target < classes;
  // p - 1 of the target cancels when the row is confident, so it is computed in double from the
  // saved sum.
  const double p = here ? std::exp(static_cast<double>(x[target]) - static_cast<double>(max)) /
                              static_cast<double>(exp_sum)
                        : 0;
  block_gradient(x, max, static_cast<R>(dy / static_cast<double>(exp_sum)),
                 static_cast<R>(dy * spread), dx, classes);
  if (here) dx[target] = T(static_cast<R>(dy * (p - (1 - smoothing) - spread)));
}

// One exp per class, and one or two passes over it.
inline constexpr std::int64_t kWorkPerClass = 8;

}  // namespace weft::cpu::cross_entropy
