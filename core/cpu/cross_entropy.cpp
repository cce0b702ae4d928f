#include "weft/core/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// A row is read from memory once, in blocks that stay in the first-level cache while the passes
// over them run. The size is part of the summation order: it must not depend on the machine.
constexpr std::int64_t kBlock = 2048;

template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

class Targets {
 public:
  explicit Targets(const Tensor& t)
      : wide_(t.dtype() == DType::i64 ? t.data<std::int64_t>() : nullptr),
        narrow_(wide_ || t.dtype() == DType::i64 ? nullptr : t.data<std::int32_t>()) {}
  std::int64_t operator[](std::int64_t row) const { return wide_ ? wide_[row] : narrow_[row]; }

 private:
  const std::int64_t* wide_;
  const std::int32_t* narrow_;
};

// --- one block
// ------------------------------------------------------------------------------------ f32 and bf16
// through the row kernels, f64 in plain loops.

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

// --- one row
// --------------------------------------------------------------------------------------

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
    // holds a NaN must not be skipped.
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

// dlogits = dy * (softmax - target distribution): all in R, with one rounding to T at the end. dx
// may be x.
template <class T>
void gradient_row(const T* x, std::int64_t classes, std::int64_t target, Real<T> max,
                  Real<T> exp_sum, double dy, double smoothing, T* dx) {
  using R = Real<T>;
  const double spread = smoothing / static_cast<double>(classes);
  // The target's p - 1 cancels when the row is confident: in double, from the saved sum.
  const double p = std::exp(static_cast<double>(x[target]) - static_cast<double>(max)) /
                   static_cast<double>(exp_sum);
  block_gradient(x, max, static_cast<R>(dy / static_cast<double>(exp_sum)),
                 static_cast<R>(dy * spread), dx, classes);
  dx[target] = T(static_cast<R>(dy * (p - (1 - smoothing) - spread)));
}

// The factor of a mean: 1 / count, 0 when nothing counts, 1 for a sum.
double mean_scale(const Tensor& count) {
  const std::int64_t valid = count ? *count.data<std::int64_t>() : 1;
  return valid > 0 ? 1 / static_cast<double>(valid) : 0;
}

// One exp a class and one pass or two over it.
constexpr std::int64_t kWorkPerClass = 8;

}  // namespace

void count_valid(const Tensor& targets, std::int64_t ignore_index, const Tensor& count) {
  const Targets t(targets);
  const std::int64_t rows = targets.numel();
  std::int64_t n = 0;
  for (std::int64_t r = 0; r < rows; ++r) n += t[r] != ignore_index;
  *count.data<std::int64_t>() = n;
}

void find_bad_target(const Tensor& targets, std::int64_t ignore_index, std::int64_t classes,
                     const char*, const Tensor& row) {
  const Targets t(targets);
  const std::int64_t rows = targets.numel();
  std::int64_t r = 0;
  while (r < rows && (t[r] == ignore_index || (t[r] >= 0 && t[r] < classes))) ++r;
  *row.data<std::int64_t>() = r < rows ? r : -1;
}

void cross_entropy_fwd(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index,
                       double label_smoothing, const Tensor& losses, const Tensor& stats) {
  const std::int64_t rows = targets.numel(), classes = logits.dim(-1);
  const Targets t(targets);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* x = logits.data<T>();
    R* loss = losses.data<R>();
    R* stat = stats.data<R>();
    parallel_for(rows, classes * kWorkPerClass, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        if (t[r] == ignore_index) {
          loss[r] = stat[2 * r] = stat[2 * r + 1] = 0;
          continue;
        }
        const T* row = x + r * classes;
        const RowStats<R> s = read_row(row, classes, label_smoothing > 0);
        loss[r] =
            static_cast<R>(row_loss(s, static_cast<double>(row[t[r]]), classes, label_smoothing));
        stat[2 * r] = s.max;
        stat[2 * r + 1] = static_cast<R>(s.exp_sum);
      }
    });
  });
}

void cross_entropy_reduce(const Tensor& losses, const Tensor& count, const Tensor& loss) {
  const std::int64_t rows = losses.numel();
  dispatch_floating(losses.dtype(), [&]<class T>() {
    const T* l = losses.data<T>();
    double total = 0;
    for (std::int64_t r = 0; r < rows; ++r) total += static_cast<double>(l[r]);
    if (count) {
      const std::int64_t n = *count.data<std::int64_t>();
      total = n > 0 ? total / static_cast<double>(n) : 0;
    }
    *loss.data<T>() = T(static_cast<Real<T>>(total));
  });
}

void cross_entropy_bwd(const Tensor& logits, const Tensor& targets, const Tensor& stats,
                       const Tensor& dy, const Tensor& count, std::int64_t ignore_index,
                       double label_smoothing, const Tensor& dlogits) {
  const std::int64_t rows = targets.numel(), classes = logits.dim(-1);
  const Targets t(targets);
  const double scale = mean_scale(count);
  const std::int64_t dy_stride = dy.ndim() == 0 ? 0 : 1;
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* x = logits.data<T>();
    const R* stat = stats.data<R>();
    const R* g = dy.data<R>();
    T* dx = dlogits.data<T>();
    parallel_for(rows, classes * kWorkPerClass, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const R max = stat[2 * r], exp_sum = stat[2 * r + 1];
        if (t[r] == ignore_index || exp_sum == 0) {
          std::fill_n(dx + r * classes, classes, T(0.f));
          continue;
        }
        gradient_row(x + r * classes, classes, t[r], max, exp_sum,
                     static_cast<double>(g[r * dy_stride]) * scale, label_smoothing,
                     dx + r * classes);
      }
    });
  });
}

void cross_entropy_in_place(const Tensor& logits, const Tensor& targets, const Tensor& count,
                            std::int64_t ignore_index, double label_smoothing,
                            const Tensor& losses) {
  const std::int64_t rows = targets.numel(), classes = logits.dim(-1);
  const Targets t(targets);
  const double scale = mean_scale(count);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    T* x = logits.data<T>();
    R* loss = losses.data<R>();
    parallel_for(rows, 2 * classes * kWorkPerClass, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        T* row = x + r * classes;
        loss[r] = 0;
        RowStats<R> s;
        if (t[r] != ignore_index) {
          s = read_row(row, classes, label_smoothing > 0);
          loss[r] =
              static_cast<R>(row_loss(s, static_cast<double>(row[t[r]]), classes, label_smoothing));
        }
        if (s.exp_sum == 0)
          std::fill_n(row, classes, T(0.f));
        else
          gradient_row(row, classes, t[r], s.max, static_cast<R>(s.exp_sum), scale, label_smoothing,
                       row);
      }
    });
  });
}

void cross_entropy_hits(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index,
                        const Tensor& hits) {
  const std::int64_t rows = targets.numel(), classes = logits.dim(-1);
  const Targets t(targets);
  bool* hit = hits.data<bool>();
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* x = logits.data<T>();
    parallel_for(rows, classes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* row = x + r * classes;
        hit[r] = t[r] != ignore_index;
        if (!hit[r]) continue;
        const R own = static_cast<R>(row[t[r]]);
        hit[r] = std::all_of(row, row + classes, [=](T v) { return static_cast<R>(v) <= own; });
      }
    });
  });
}

}  // namespace weft::cpu
