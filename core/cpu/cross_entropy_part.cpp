#include "weft/core/kernels/cross_entropy_part.h"

#include "weft/core/cpu/cross_entropy_row.h"
#include "weft/core/parallel.h"

namespace weft::cpu {

using namespace cross_entropy;

void cross_entropy_part_stats(const Tensor& logits, const Tensor& targets,
                              std::int64_t ignore_index, ClassRange range, bool with_sum,
                              const Tensor& stats) {
  const std::int64_t rows = targets.numel(), classes = logits.dim(-1);
  const Indices t(targets);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* x = logits.data<T>();
    R* out = stats.data<R>();
    parallel_for(rows, (classes + 1) * kWorkPerClass, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        R* const s = out + 4 * r;
        if (t[r] == ignore_index) {
          std::fill_n(s, 4, R(0));
          continue;
        }
        const T* const row = x + r * classes;
        const RowStats<R> of = read_row(row, classes, with_sum);
        const std::int64_t target = t[r] - range.first;
        const bool here = target >= 0 && target < classes;
        s[0] = of.max;
        s[1] = static_cast<R>(of.exp_sum);
        s[2] = here ? static_cast<R>(row[target]) : -std::numeric_limits<R>::infinity();
        s[3] = static_cast<R>(of.sum);
      }
    });
  });
}

void cross_entropy_part_merge(const Tensor& parts, const Tensor& targets, std::int64_t ignore_index,
                              std::int64_t classes, double label_smoothing, const Tensor& losses,
                              const Tensor& stats, const Tensor& hits) {
  const std::int64_t rows = targets.numel(), ranks = parts.dim(0);
  const Indices t(targets);
  const auto run = [&]<class R>() {
    const R* p = parts.data<R>();
    R* loss = losses.data<R>();
    R* stat = stats.data<R>();
    bool* hit = data_or_null<bool>(hits);
    parallel_for(rows, ranks * kWorkPerClass, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        RowStats<R> s;
        R own = -std::numeric_limits<R>::infinity();
        loss[r] = stat[2 * r] = stat[2 * r + 1] = 0;
        if (hit) hit[r] = false;
        if (t[r] == ignore_index) continue;
        for (std::int64_t w = 0; w < ranks; ++w) {
          const R* const part = p + (w * rows + r) * 4;
          s.max = std::max(s.max, part[0]);
          own = std::max(own, part[2]);
          s.sum += static_cast<double>(part[3]);
        }
        for (std::int64_t w = 0; w < ranks; ++w) {
          const R* const part = p + (w * rows + r) * 4;
          if (part[1] == 0) continue;  // all -inf: no mass, and avoids -inf - -inf
          s.exp_sum += static_cast<double>(part[1]) *
                       std::exp(static_cast<double>(part[0]) - static_cast<double>(s.max));
        }
        loss[r] = static_cast<R>(row_loss(s, static_cast<double>(own), classes, label_smoothing));
        stat[2 * r] = s.max;
        stat[2 * r + 1] = static_cast<R>(s.exp_sum);
        if (hit) hit[r] = own >= s.max && !std::isnan(s.exp_sum);
      }
    });
  };
  if (parts.dtype() == DType::f64)
    run.template operator()<double>();
  else
    run.template operator()<float>();
}

void cross_entropy_part_bwd(const CrossEntropyBwdIn& in, ClassRange range, const Tensor& dlogits) {
  const std::int64_t rows = in.targets.numel(), classes = in.logits.dim(-1);
  const Indices t(in.targets);
  const double scale = mean_scale(data_or_null<std::int64_t>(in.count));
  dispatch_floating(in.logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* x = in.logits.data<T>();
    const R* stat = in.stats.data<R>();
    const R* g = data_or_null<R>(in.dy);
    T* dx = dlogits.data<T>();
    parallel_for(rows, classes * kWorkPerClass, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const R max = stat[2 * r], exp_sum = stat[2 * r + 1];
        if (t[r] == in.ignore_index || exp_sum == 0) {
          std::fill_n(dx + r * classes, classes, T(0.f));
          continue;
        }
        gradient_row(x + r * classes, classes, range.all, t[r] - range.first, max, exp_sum,
                     (g ? static_cast<double>(g[r]) : 1) * scale, in.label_smoothing,
                     dx + r * classes);
      }
    });
  });
}

}  // namespace weft::cpu
