#include "weft/core/kernels/cross_entropy.h"

#include <algorithm>

#include "weft/core/cpu/cross_entropy_row.h"
#include "weft/core/parallel.h"

namespace weft::cpu {

using namespace cross_entropy;

void count_valid(const Tensor& targets, std::int64_t ignore_index, const Tensor& count) {
  const Indices t(targets);
  const std::int64_t rows = targets.numel();
  std::int64_t n = 0;
  for (std::int64_t r = 0; r < rows; ++r) n += t[r] != ignore_index;
  *count.data<std::int64_t>() = n;
}

void find_bad_target(const Tensor& targets, std::int64_t ignore_index, std::int64_t classes,
                     const char*, const Tensor& row) {
  const Indices t(targets);
  const std::int64_t rows = targets.numel();
  std::int64_t r = 0;
  while (r < rows && (t[r] == ignore_index || (t[r] >= 0 && t[r] < classes))) ++r;
  *row.data<std::int64_t>() = r < rows ? r : -1;
}

void cross_entropy_fwd(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index,
                       double label_smoothing, const Tensor& losses, const Tensor& stats) {
  const std::int64_t rows = targets.numel(), classes = logits.dim(-1);
  const Indices t(targets);
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
    if (count.defined()) {
      const std::int64_t n = *count.data<std::int64_t>();
      total = n > 0 ? total / static_cast<double>(n) : 0;
    }
    *loss.data<T>() = T(static_cast<Real<T>>(total));
  });
}

void cross_entropy_bwd(const CrossEntropyBwdIn& in, const Tensor& dlogits) {
  const std::int64_t rows = in.targets.numel(), classes = in.logits.dim(-1);
  const Indices t(in.targets);
  const double scale = mean_scale(data_or_null<std::int64_t>(in.count));
  const std::int64_t dy_stride = in.dy.ndim() == 0 ? 0 : 1;
  dispatch_floating(in.logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* x = in.logits.data<T>();
    const R* stat = in.stats.data<R>();
    const R* g = in.dy.data<R>();
    T* dx = dlogits.data<T>();
    parallel_for(rows, classes * kWorkPerClass, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const R max = stat[2 * r], exp_sum = stat[2 * r + 1];
        if (t[r] == in.ignore_index || exp_sum == 0) {
          std::fill_n(dx + r * classes, classes, T(0.f));
          continue;
        }
        gradient_row(x + r * classes, classes, classes, t[r], max, exp_sum,
                     static_cast<double>(g[r * dy_stride]) * scale, in.label_smoothing,
                     dx + r * classes);
      }
    });
  });
}

void cross_entropy_in_place(const Tensor& logits, const Tensor& targets, const Tensor& count,
                            std::int64_t ignore_index, double label_smoothing,
                            const Tensor& losses) {
  const std::int64_t rows = targets.numel(), classes = logits.dim(-1);
  const Indices t(targets);
  const double scale = mean_scale(data_or_null<std::int64_t>(count));
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
          gradient_row(row, classes, classes, t[r], s.max, static_cast<R>(s.exp_sum), scale,
                       label_smoothing, row);
      }
    });
  });
}

void cross_entropy_hits(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index,
                        const Tensor& hits) {
  const std::int64_t rows = targets.numel(), classes = logits.dim(-1);
  const Indices t(targets);
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
