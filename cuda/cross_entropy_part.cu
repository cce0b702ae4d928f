// Cross entropy with the classes sharded over ranks: the statistics of a rank's shard, the merge of
// all shards, and the gradient of a shard.
#include <limits>

#include "weft/core/kernels/cross_entropy_part.h"
#include "weft/cuda/cross_entropy_row.h"

namespace weft::cuda {

using namespace cross_entropy;

namespace {

constexpr int kJoin = 128;  // threads per block, one row each

template <class R>
constexpr R kNothing = -std::numeric_limits<R>::infinity();

template <int Threads, class T>
__global__ void __launch_bounds__(kBlock<Threads>)
    cross_entropy_part_stats_kernel(const T* logits, std::int64_t step, Targets targets,
                                    std::int64_t rows, std::int64_t first, std::int64_t classes,
                                    bool with_sum, Real<T>* stats) {
  using R = Real<T>;
  WEFT_SHARED(shared, R[kWarp]);
  const std::int64_t row = row_of_block();
  if (row >= rows) return;  // whole warps exit where each warp has its own row
  R* const out = stats + 4 * row;
  const std::int64_t target = targets.valid(row);
  if (target < 0) {  // uniform over the threads of the row
    if (threadIdx.x == 0) out[0] = out[1] = out[2] = out[3] = 0;
    return;
  }
  const T* x = logits + row * step;
  const auto s =
      read_row<Threads>(x, classes, with_sum, shared, [](std::int64_t, const Pack<T>&) {});
  if (threadIdx.x > 0) return;
  const std::int64_t own = target - first;
  out[0] = s.max;
  out[1] = s.sum;
  out[2] = own >= 0 && own < classes ? widen(x[own]) : kNothing<R>;
  out[3] = s.plain;
}

template <class R>
__global__ void __launch_bounds__(kJoin)
    cross_entropy_part_merge_kernel(const R* parts, Targets targets, std::int64_t rows,
                                    std::int64_t ranks, double smoothing, R* losses, R* stats,
                                    bool* hits) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kJoin + threadIdx.x;
  if (row >= rows) return;
  const bool counts = targets.valid(row) >= 0;
  R top = kNothing<R>, own = kNothing<R>;
  double mass = 0, plain = 0;
  for (std::int64_t w = 0; w < ranks; ++w) {
    const R* const part = parts + (w * rows + row) * 4;
    top = part[0] > top ? part[0] : top;
    own = part[2] > own ? part[2] : own;
    plain += static_cast<double>(part[3]);
  }
  for (std::int64_t w = 0; w < ranks; ++w) {
    const R* const part = parts + (w * rows + row) * 4;
    if (part[1] != 0)  // else all -inf: no mass, and avoids -inf - -inf
      mass += static_cast<double>(part[1]) *
              exp_of(static_cast<double>(part[0]) - static_cast<double>(top));
  }
  double loss = std::numeric_limits<double>::infinity();
  if (mass != 0) {
    const double log_sum = log_of(mass), max = static_cast<double>(top);
    loss = (1 - smoothing) * (log_sum + (max - static_cast<double>(own)));
    if (smoothing > 0)
      loss += smoothing * (log_sum + (max - plain / static_cast<double>(targets.classes)));
  }
  losses[row] = counts ? static_cast<R>(loss) : R(0);
  stats[2 * row] = counts ? top : R(0);
  stats[2 * row + 1] = counts ? static_cast<R>(mass) : R(0);
  if (hits) hits[row] = counts && own >= top && mass == mass;
}

template <int Threads, class T>
__global__ void __launch_bounds__(kBlock<Threads>, 1024 / kBlock<Threads>)
    cross_entropy_part_bwd_kernel(const T* logits, std::int64_t step, Targets targets,
                                  std::int64_t rows, std::int64_t first, std::int64_t classes,
                                  const Real<T>* stats, const Real<T>* dy,
                                  const std::int64_t* count, double smoothing, T* dlogits) {
  using R = Real<T>;
  const std::int64_t row = row_of_block();
  if (row >= rows) return;
  const T* x = logits + row * step;
  T* dx = dlogits + row * step;
  const std::int64_t target = targets.valid(row), own = target - first;
  const R max = stats[2 * row], sum = stats[2 * row + 1];
  if (target < 0 || sum == 0) {
    clear_row<Threads>(dx, classes);
    return;
  }
  const bool here = own >= 0 && own < classes;
  const R target_logit = here ? widen(x[own]) : R(0);
  sync_row<Threads>();  // dlogits may be logits
  const double factor = (dy ? static_cast<double>(dy[row]) : 1.0) * mean_scale(count);
  const Gradient<R> gradient(max, sum, factor, smoothing, targets.classes);
  each_pack<Threads>(
      RowParts(classes, x, dx), classes,
      [&]<int N>(std::int64_t at, const Pack<T, N>& v) { store_pack(dx + at, gradient(v)); }, x);
  sync_row<Threads>();
  if (threadIdx.x == 0 && here)
    dx[own] =
        narrow<T>(target_gradient(target_logit, max, sum, factor, smoothing, targets.classes));
}

}  // namespace

void cross_entropy_part_stats(const Tensor& logits, const Tensor& targets,
                              std::int64_t ignore_index, ClassRange range, bool with_sum,
                              const Tensor& stats) {
  const Targets t(targets, ignore_index, range.all);
  const std::int64_t rows = targets.numel(), classes = logits.dim(-1), step = row_step(logits);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    by_classes(classes, rows, [&]<int Threads>(dim3 grid, dim3 block) {
      launch(cross_entropy_part_stats_kernel<Threads, T>, grid, block, 0, logits.data<T>(), step, t,
             rows, range.first, classes, with_sum, stats.data<Real<T>>());
    });
  });
}

void cross_entropy_part_merge(const Tensor& parts, const Tensor& targets, std::int64_t ignore_index,
                              std::int64_t classes, double label_smoothing, const Tensor& losses,
                              const Tensor& stats, const Tensor& hits) {
  const Targets t(targets, ignore_index, classes);
  const std::int64_t rows = targets.numel();
  const auto run = [&]<class R>() {
    launch(cross_entropy_part_merge_kernel<R>, grid_of(blocks_for(rows, kJoin)), kJoin, 0,
           parts.data<R>(), t, rows, parts.dim(0), label_smoothing, losses.data<R>(),
           stats.data<R>(), data_or_null<bool>(hits));
  };
  if (parts.dtype() == DType::f64)
    run.template operator()<double>();
  else
    run.template operator()<float>();
}

void cross_entropy_part_bwd(const CrossEntropyBwdIn& in, ClassRange range, const Tensor& dlogits) {
  const Targets t(in.targets, in.ignore_index, range.all);
  const std::int64_t rows = in.targets.numel(), classes = in.logits.dim(-1);
  const std::int64_t step = row_step(in.logits);
  dispatch_floating(in.logits.dtype(), [&]<class T>() {
    by_classes(classes, rows, [&]<int Threads>(dim3 grid, dim3 block) {
      launch(cross_entropy_part_bwd_kernel<Threads, T>, grid, block, 0, in.logits.data<T>(), step,
             t, rows, range.first, classes, in.stats.data<Real<T>>(), data_or_null<Real<T>>(in.dy),
             data_or_null<std::int64_t>(in.count), in.label_smoothing, dlogits.data<T>());
    });
  });
}

}  // namespace weft::cuda
