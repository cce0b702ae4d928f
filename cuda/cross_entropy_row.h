#pragma once
#include "weft/core/kernels/cross_entropy.h"
#include "weft/cuda/long_row.h"

// Functions on one row of logits, shared by the cross-entropy kernels.
namespace weft::cuda::cross_entropy {

inline constexpr int kRowsOfWarps = 8;            // rows per block, one per warp
inline constexpr int kMiddle = 256, kMost = 512;  // threads for longer rows
inline constexpr std::int64_t kShortRow = 1024;   // longest row for one warp
inline constexpr std::int64_t kMiddleRow = 8192;  // longest row for kMiddle threads

template <int Threads>
inline constexpr int kBlock = Threads == kWarp ? kWarp* kRowsOfWarps : Threads;

/// Elements from a row of logits to the next. Only logits of two axes may have padded rows.
inline std::int64_t row_step(const Tensor& logits) {
  return logits.ndim() == 2 ? logits.strides()[0] : logits.dim(-1);
}

struct Targets : Indices {
  std::int64_t ignored, classes;

  Targets(const Tensor& t, std::int64_t ignore_index, std::int64_t n)
      : Indices(t), ignored(ignore_index), classes(n) {}
  __device__ bool bad(std::int64_t t) const { return t != ignored && (t < 0 || t >= classes); }
  /// The class of the row; -1 for an ignored row.
  __device__ std::int64_t valid(std::int64_t row) const {
    const std::int64_t t = (*this)[row];
    return t == ignored || bad(t) ? -1 : t;
  }
};

template <class R>
struct RowStats : ExpSum<R> {
  R plain = 0;  // the sum of x, for label smoothing
};

// Calls keep(i, pack) for each pack of the row.
template <int Threads, class T, class Keep>
__device__ inline RowStats<Real<T>> read_row(const T* x, std::int64_t classes, bool with_sum,
                                             Real<T>* shared, Keep&& keep) {
  using R = Real<T>;
  RowStats<R> s;
  static_cast<ExpSum<R>&>(s) = exp_sum<Threads>(x, classes, keep, [&](const auto& values) {
    if (with_sum)
      for (const R v : values) s.plain += v;
  });
  s.template join<Threads>(shared);
  if (with_sum) s.plain = block_reduce<Threads>(s.plain, shared, R(0), Sum{});
  return s;
}

/// dlogits = dy * (softmax - target distribution), for all classes except the target.
template <class R>
struct Gradient {
  R max, scale, spread;

  __device__ Gradient(R m, R sum, double dy, double smoothing, std::int64_t classes)
      : max(m),
        scale(static_cast<R>(dy / static_cast<double>(sum))),
        spread(static_cast<R>(dy * smoothing / static_cast<double>(classes))) {}

  template <class T, int N>
  __device__ Pack<T, N> operator()(Pack<T, N> x) const {
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = narrow<T>(fast_exp(widen(x[k]) - max) * scale - spread);
    return x;
  }
};

/// For the target class: p - 1 cancels when the row is confident, so it is computed in double.
template <class R>
__device__ inline R target_gradient(R x, R max, R sum, double dy, double smoothing,
                                    std::int64_t classes) {
  const double p =
      exp_of(static_cast<double>(x) - static_cast<double>(max)) / static_cast<double>(sum);
  return static_cast<R>(dy * (p - (1 - smoothing) - smoothing / static_cast<double>(classes)));
}

/// Synchronises the threads of a row.
template <int Threads>
__device__ inline void sync_row() {
  if constexpr (Threads == kWarp)
    __syncwarp();
  else
    __syncthreads();
}

template <int Threads, class T>
__device__ inline void clear_row(T* dx, std::int64_t classes) {
  each_pack<Threads>(
      RowParts(classes, dx), classes,
      [&]<int N>(std::int64_t at, Pack<T, N> v) {
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = T(0.0f);
        store_pack(dx + at, v);
      },
      dx);
}

__device__ inline std::int64_t row_of_block() {
  return std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
}

// Calls run.operator()<Threads>(grid, block) with the number of threads per row that suits this
// many classes.
template <class F>
void by_classes(std::int64_t classes, std::int64_t rows, F&& run) {
  if (classes <= kShortRow)
    run.template operator()<kWarp>(grid_of(blocks_for(rows, kRowsOfWarps)),
                                   dim3(kWarp, kRowsOfWarps));
  else if (classes <= kMiddleRow)
    run.template operator()<kMiddle>(grid_of(rows), dim3(kMiddle));
  else
    run.template operator()<kMost>(grid_of(rows), dim3(kMost));
}

}  // namespace weft::cuda::cross_entropy
