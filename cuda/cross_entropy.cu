// Cross entropy of rows of logits. A row is read from memory once, for its maximum and its sum of
// exponentials together. The gradient is recomputed from the logits, never stored.
#include <limits>

#include "weft/core/kernels/cross_entropy.h"
#include "weft/cuda/cross_entropy_row.h"
#include "weft/cuda/index_fault.h"

namespace weft::cuda {

using namespace cross_entropy;

namespace {

// Bytes of a row in shared memory: the 99 KiB that a block has on every GPU, minus the space for
// sums.
constexpr std::int64_t kKeptBytes = (99 << 10) - 512;
constexpr int kAlone = 1024;  // threads of the single-block kernels

template <class R>
__device__ inline double row_loss(const RowStats<R>& s, R target_logit, std::int64_t classes,
                                  double smoothing) {
  if (s.sum == 0) return std::numeric_limits<double>::infinity();
  const auto max = static_cast<double>(s.max);
  const double log_sum = log_of(static_cast<double>(s.sum));
  double loss = (1 - smoothing) * (log_sum + (max - static_cast<double>(target_logit)));
  if (smoothing > 0)
    loss +=
        smoothing * (log_sum + (max - static_cast<double>(s.plain) / static_cast<double>(classes)));
  return loss;
}

template <int Threads, class T>
__global__ void __launch_bounds__(kBlock<Threads>)
    cross_entropy_fwd_kernel(const T* logits, std::int64_t step, Targets targets, std::int64_t rows,
                             double smoothing, Real<T>* losses, Real<T>* stats) {
  using R = Real<T>;
  WEFT_SHARED(shared, R[kWarp]);
  const std::int64_t row = row_of_block();
  if (row >= rows) return;  // whole warps exit where each warp has its own row
  const std::int64_t target = targets.valid(row);
  if (target < 0) {  // uniform over the threads of the row
    if (threadIdx.x == 0) losses[row] = stats[2 * row] = stats[2 * row + 1] = 0;
    return;
  }
  const T* x = logits + row * step;
  const auto s = read_row<Threads>(x, targets.classes, smoothing > 0, shared,
                                   [](std::int64_t, const Pack<T>&) {});
  if (threadIdx.x == 0) {
    losses[row] = static_cast<R>(row_loss(s, widen(x[target]), targets.classes, smoothing));
    stats[2 * row] = s.max;
    stats[2 * row + 1] = s.sum;
  }
}

// A bound of 1024 threads per multiprocessor lets the compiler use 64 registers; without it, it
// limits itself to 40 and spills.
template <int Threads, class T>
__global__ void __launch_bounds__(kBlock<Threads>, 1024 / kBlock<Threads>)
    cross_entropy_bwd_kernel(const T* logits, std::int64_t step, Targets targets, std::int64_t rows,
                             const Real<T>* stats, const Real<T>* dy, std::int64_t dy_stride,
                             const std::int64_t* count, double smoothing, T* dlogits) {
  const std::int64_t row = row_of_block(), classes = targets.classes;
  if (row >= rows) return;
  const T* x = logits + row * step;
  T* dx = dlogits + row * step;
  const std::int64_t target = targets.valid(row);
  const Real<T> max = stats[2 * row], sum = stats[2 * row + 1];
  if (target < 0 || sum == 0) {
    clear_row<Threads>(dx, classes);
    return;
  }
  const Real<T> target_logit = static_cast<Real<T>>(x[target]);
  sync_row<Threads>();  // dlogits may be logits
  const double factor = static_cast<double>(dy[row * dy_stride]) * mean_scale(count);
  const Gradient<Real<T>> gradient(max, sum, factor, smoothing, classes);
  each_pack<Threads>(
      RowParts(classes, x, dx), classes,
      [&]<int N>(std::int64_t at, const Pack<T, N>& v) { store_pack(dx + at, gradient(v)); }, x);
  sync_row<Threads>();
  if (threadIdx.x == 0)
    dx[target] = narrow<T>(target_gradient(target_logit, max, sum, factor, smoothing, classes));
}

// If `kept`, the packs of a row stay in shared memory for the second pass, and each thread reads
// back the packs that it stored. Otherwise they are read again.
template <int Threads, class T>
__global__ void __launch_bounds__(kBlock<Threads>)
    cross_entropy_in_place_kernel(T* logits, std::int64_t step, Targets targets, std::int64_t rows,
                                  const std::int64_t* count, double smoothing, bool kept,
                                  Real<T>* losses) {
  using R = Real<T>;
  using P = Pack<T>;
  WEFT_SHARED(shared, R[kWarp]);
  const std::int64_t row = row_of_block(), classes = targets.classes;
  if (row >= rows) return;
  T* x = logits + row * step;
  const std::int64_t target = targets.valid(row);
  if (target < 0) {
    if (threadIdx.x == 0) losses[row] = 0;
    clear_row<Threads>(x, classes);
    return;
  }
  const R target_logit = widen(x[target]);  // before any thread overwrites it
  P* const store = dynamic_shared<P>();
  const auto s =
      read_row<Threads>(x, classes, smoothing > 0, shared, [&](std::int64_t i, const P& p) {
        if (kept) store[i] = p;
      });
  if constexpr (Threads == kWarp) __syncwarp();
  if (threadIdx.x == 0) losses[row] = static_cast<R>(row_loss(s, target_logit, classes, smoothing));
  if (s.sum == 0) {
    clear_row<Threads>(x, classes);
    return;
  }
  const double factor = mean_scale(count);
  const Gradient<R> gradient(s.max, s.sum, factor, smoothing, classes);
  RowParts parts(classes, x);
  if (kept) {
    for (std::int64_t i = threadIdx.x; i < parts.packs; i += Threads) {
      const std::int64_t at = parts.head + i * P::kCount;
      store_pack(x + at, gradient(store[i]));
    }
    parts.packs = 0;
  }
  each_pack<Threads>(
      parts, classes,
      [&]<int N>(std::int64_t at, const Pack<T, N>& v) { store_pack(x + at, gradient(v)); }, x);
  sync_row<Threads>();
  if (threadIdx.x == 0)
    x[target] = narrow<T>(target_gradient(target_logit, s.max, s.sum, factor, smoothing, classes));
}

template <int Threads, class T>
__global__ void __launch_bounds__(kBlock<Threads>)
    cross_entropy_hits_kernel(const T* logits, std::int64_t step, Targets targets,
                              std::int64_t rows, bool* hits) {
  WEFT_SHARED(shared, int[kWarp]);
  const std::int64_t row = row_of_block();
  if (row >= rows) return;
  const std::int64_t target = targets.valid(row);
  if (target < 0) {
    if (threadIdx.x == 0) hits[row] = false;
    return;
  }
  const T* x = logits + row * step;
  const auto own = static_cast<Real<T>>(x[target]);
  int above = 0;  // or NaN
  each_pack<Threads>(
      RowParts(targets.classes, x), targets.classes,
      [&]<int N>(std::int64_t, const Pack<T, N>& v) {
#pragma unroll
        for (int k = 0; k < N; ++k) above += !(static_cast<Real<T>>(v[k]) <= own);
      },
      x);
  above = block_reduce<Threads>(above, shared, 0, Sum{});
  if (threadIdx.x == 0) hits[row] = above == 0;
}

__global__ void __launch_bounds__(kAlone)
    cross_entropy_count_kernel(Targets targets, std::int64_t rows, std::int64_t* count) {
  WEFT_SHARED(shared, std::int64_t[kWarp]);
  std::int64_t n = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += kAlone) n += targets[r] != targets.ignored;
  n = block_reduce<kAlone>(n, shared, std::int64_t{0}, Sum{});
  if (threadIdx.x == 0) *count = n;
}

__global__ void __launch_bounds__(kAlone)
    cross_entropy_check_kernel(Targets targets, std::int64_t rows, const char* op,
                               detail::IndexFault* fault, std::int64_t* row) {
  WEFT_SHARED(shared, std::int64_t[kWarp]);
  std::int64_t first = rows;
  for (std::int64_t r = threadIdx.x; r < rows; r += kAlone)
    if (targets.bad(targets[r]) && r < first) first = r;
  first = block_reduce<kAlone>(first, shared, rows, Min{});
  if (threadIdx.x > 0) return;
  *row = first < rows ? first : -1;
  if (first < rows) {
    detail::IndexFault what{};
    what.may_ignore = true;
    what.op = op;
    what.label = "target";
    what.limit = targets.classes;
    what.value = targets[first];
    what.ignored = targets.ignored;
    report(fault, what);
  }
}

template <class R>
__global__ void __launch_bounds__(kAlone)
    cross_entropy_reduce_kernel(const R* losses, std::int64_t rows, const std::int64_t* count,
                                R* loss) {
  WEFT_SHARED(shared, double[kWarp]);
  double total = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += kAlone) total += static_cast<double>(losses[r]);
  total = block_reduce<kAlone>(total, shared, 0.0, Sum{});
  if (threadIdx.x > 0) return;
  // All rows ignored: 0, avoiding 0 * infinity.
  *loss = !count ? R(total) : *count > 0 ? R(total / static_cast<double>(*count)) : R(0);
}

}  // namespace

void count_valid(const Tensor& targets, std::int64_t ignore_index, const Tensor& count) {
  launch(cross_entropy_count_kernel, 1, kAlone, 0, Targets(targets, ignore_index, 0),
         targets.numel(), count.data<std::int64_t>());
}

void find_bad_target(const Tensor& targets, std::int64_t ignore_index, std::int64_t classes,
                     const char* op, const Tensor& row) {
  launch(cross_entropy_check_kernel, 1, kAlone, 0, Targets(targets, ignore_index, classes),
         targets.numel(), op, detail::index_fault(targets.device()), row.data<std::int64_t>());
}

void cross_entropy_fwd(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index,
                       double label_smoothing, const Tensor& losses, const Tensor& stats) {
  const Targets t(targets, ignore_index, logits.dim(-1));
  const std::int64_t rows = targets.numel(), step = row_step(logits);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    by_classes(t.classes, rows, [&]<int Threads>(dim3 grid, dim3 block) {
      launch(cross_entropy_fwd_kernel<Threads, T>, grid, block, 0, logits.data<T>(), step, t, rows,
             label_smoothing, losses.data<Real<T>>(), stats.data<Real<T>>());
    });
  });
}

void cross_entropy_reduce(const Tensor& losses, const Tensor& count, const Tensor& loss) {
  const auto run = [&]<class R>() {
    launch(cross_entropy_reduce_kernel<R>, 1, kAlone, 0, losses.data<R>(), losses.numel(),
           data_or_null<std::int64_t>(count), loss.data<R>());
  };
  if (losses.dtype() == DType::f64)
    run.template operator()<double>();
  else
    run.template operator()<float>();
}

void cross_entropy_bwd(const CrossEntropyBwdIn& in, const Tensor& dlogits) {
  const Targets t(in.targets, in.ignore_index, in.logits.dim(-1));
  const std::int64_t rows = in.targets.numel(), dy_stride = in.dy.ndim() == 0 ? 0 : 1;
  const std::int64_t step = row_step(in.logits);
  dispatch_floating(in.logits.dtype(), [&]<class T>() {
    by_classes(t.classes, rows, [&]<int Threads>(dim3 grid, dim3 block) {
      launch(cross_entropy_bwd_kernel<Threads, T>, grid, block, 0, in.logits.data<T>(), step, t,
             rows, in.stats.data<Real<T>>(), in.dy.data<Real<T>>(), dy_stride,
             data_or_null<std::int64_t>(in.count), in.label_smoothing, dlogits.data<T>());
    });
  });
}

void cross_entropy_in_place(const Tensor& logits, const Tensor& targets, const Tensor& count,
                            std::int64_t ignore_index, double label_smoothing,
                            const Tensor& losses) {
  const Targets t(targets, ignore_index, logits.dim(-1));
  const std::int64_t rows = targets.numel(), step = row_step(logits);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    const std::int64_t bytes = t.classes * static_cast<std::int64_t>(sizeof(T)) / 16 * 16;
    by_classes(t.classes, rows, [&]<int Threads>(dim3 grid, dim3 block) {
      const bool kept = Threads > kWarp && bytes <= kKeptBytes;
      launch(cross_entropy_in_place_kernel<Threads, T>, grid, block,
             kept ? static_cast<std::size_t>(bytes) : 0, logits.data<T>(), step, t, rows,
             data_or_null<std::int64_t>(count), label_smoothing, kept, losses.data<Real<T>>());
    });
  });
}

void cross_entropy_hits(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index,
                        const Tensor& hits) {
  const Targets t(targets, ignore_index, logits.dim(-1));
  const std::int64_t rows = targets.numel(), step = row_step(logits);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    by_classes(t.classes, rows, [&]<int Threads>(dim3 grid, dim3 block) {
      launch(cross_entropy_hits_kernel<Threads, T>, grid, block, 0, logits.data<T>(), step, t, rows,
             hits.data<bool>());
    });
  });
}

}  // namespace weft::cuda
