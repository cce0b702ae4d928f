// softmax and log_softmax along rows. A row stays in the registers of a warp or a block; longer
// rows are read twice.
#include <limits>

#include "weft/core/kernels/softmax.h"
#include "weft/cuda/long_row.h"

namespace weft::cuda {
namespace {

constexpr int kPacks = 4;        // packs per thread of a row in registers
constexpr int kMost = 512;       // most threads for a row in registers
constexpr int kLong = 1024;      // threads for a longer row
constexpr int kRowsOfWarps = 8;  // rows per block, one per warp

/// A thread's part of a row of at most Threads * kSize elements: packs, or single elements read
/// coalesced by the warp when rows do not consist of whole packs.
template <class T, int Threads>
struct Slice {
  static constexpr int P = Pack<T>::kCount, kSize = kPacks * P;
  Pack<T> value[kPacks];

  static __device__ std::int64_t place(int j, int k, bool packed) {
    const int thread = static_cast<int>(threadIdx.x);
    return packed ? (j * Threads + thread) * P + k : (j * P + k) * Threads + thread;
  }
  __device__ void load(const T* x, std::int64_t n, bool packed, Real<T> beyond) {
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
#pragma unroll
      for (int k = 0; k < P; ++k) value[j][k] = narrow<T>(beyond);
      if (packed) {
        if (place(j, 0, true) < n) value[j] = load_pack(x + place(j, 0, true));
      } else {
#pragma unroll
        for (int k = 0; k < P; ++k)
          if (place(j, k, false) < n) value[j][k] = x[place(j, k, false)];
      }
    }
  }
  __device__ void store(T* y, std::int64_t n, bool packed) const {
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      if (packed) {
        if (place(j, 0, true) < n) store_pack(y + place(j, 0, true), value[j]);
      } else {
#pragma unroll
        for (int k = 0; k < P; ++k)
          if (place(j, k, false) < n) y[place(j, k, false)] = value[j][k];
      }
    }
  }
  __device__ Real<T> at(int i) const { return widen(value[i / P][i % P]); }
  __device__ void set(int i, Real<T> v) { value[i / P][i % P] = narrow<T>(v); }
};

template <int Threads, class T>
__global__ void __launch_bounds__(Threads == kWarp ? kWarp * kRowsOfWarps : Threads)
    softmax_fwd_kernel(const T* x, T* y, std::int64_t rows, std::int64_t n, bool packed, bool log) {
  using R = Real<T>;
  using S = Slice<T, Threads>;
  WEFT_SHARED(shared, R[kWarp]);
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // whole warps exit where each warp has its own row
  S slice;
  slice.load(x + row * n, n, packed, -std::numeric_limits<R>::infinity());
  R top = slice.at(0);
#pragma unroll
  for (int i = 1; i < S::kSize; ++i) top = larger(top, slice.at(i));
  top = block_reduce<Threads>(top, shared, -std::numeric_limits<R>::infinity(), Max{});
  R e[S::kSize];
  R sum = 0;
#pragma unroll
  for (int i = 0; i < S::kSize; ++i) {
    e[i] = fast_exp(slice.at(i) - top);
    sum += e[i];
  }
  sum = block_reduce<Threads>(sum, shared, R(0), Sum{});
  if (log) {
    const R log_sum = log_of(sum);
#pragma unroll
    for (int i = 0; i < S::kSize; ++i) slice.set(i, slice.at(i) - top - log_sum);
  } else {
    const R share = 1 / sum;
#pragma unroll
    for (int i = 0; i < S::kSize; ++i) slice.set(i, e[i] * share);
  }
  slice.store(y + row * n, n, packed);
}

template <class T>
__global__ void __launch_bounds__(kLong)
    softmax_fwd_long_kernel(const T* x, T* y, std::int64_t n, bool log) {
  using R = Real<T>;
  WEFT_SHARED(shared, R[kWarp]);
  const T* from = x + std::int64_t{blockIdx.x} * n;
  T* to = y + std::int64_t{blockIdx.x} * n;
  ExpSum<R> s = exp_sum<kLong>(
      from, n, [](std::int64_t, const Pack<T>&) {}, [](const auto&) {});
  s.template join<kLong>(shared);
  const R log_sum = log_of(s.sum), share = 1 / s.sum;
  each_pack<kLong>(
      RowParts(n, from, to), n,
      [&]<int N>(std::int64_t at, Pack<T, N> v) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const R d = widen(v[k]) - s.max;
          v[k] = narrow<T>(log ? d - log_sum : fast_exp(d) * share);
        }
        store_pack(to + at, v);
      },
      from);
}

// If y is the softmax: dx = y * (dy - sum(y * dy)). If y is its logarithm: dx = dy - exp(y) *
// sum(dy).
template <class R>
__device__ inline R softmax_term(R y, R dy, bool log) {
  return log ? dy : y * dy;
}
template <class R>
__device__ inline R softmax_gradient(R y, R dy, R total, bool log) {
  return log ? dy - fast_exp(y) * total : y * (dy - total);
}

template <int Threads, class T>
__global__ void __launch_bounds__(Threads == kWarp ? kWarp * kRowsOfWarps : Threads)
    softmax_bwd_kernel(const T* y, const T* dy, T* dx, std::int64_t rows, std::int64_t n,
                       bool packed, bool log) {
  using R = Real<T>;
  using S = Slice<T, Threads>;
  WEFT_SHARED(shared, R[kWarp]);
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // whole warps exit where each warp has its own row
  S p, g;
  p.load(y + row * n, n, packed, 0);
  g.load(dy + row * n, n, packed, 0);
  R total = 0;
#pragma unroll
  for (int i = 0; i < S::kSize; ++i) total += softmax_term(p.at(i), g.at(i), log);
  total = block_reduce<Threads>(total, shared, R(0), Sum{});
#pragma unroll
  for (int i = 0; i < S::kSize; ++i) g.set(i, softmax_gradient(p.at(i), g.at(i), total, log));
  g.store(dx + row * n, n, packed);
}

template <class T>
__global__ void __launch_bounds__(kLong)
    softmax_bwd_long_kernel(const T* y, const T* dy, T* dx, std::int64_t n, bool log) {
  using R = Real<T>;
  WEFT_SHARED(shared, R[kWarp]);
  const std::int64_t first = std::int64_t{blockIdx.x} * n;
  R total = 0;
  const RowParts parts(n, y + first, dy + first, dx + first);
  each_pack<kLong>(
      parts, n,
      [&]<int N>(std::int64_t, const Pack<T, N>& p, const Pack<T, N>& g) {
#pragma unroll
        for (int k = 0; k < N; ++k) total += softmax_term(widen(p[k]), widen(g[k]), log);
      },
      y + first, dy + first);
  total = block_reduce<kLong>(total, shared, R(0), Sum{});
  each_pack<kLong>(
      parts, n,
      [&]<int N>(std::int64_t at, const Pack<T, N>& p, Pack<T, N> g) {
#pragma unroll
        for (int k = 0; k < N; ++k)
          g[k] = narrow<T>(softmax_gradient(widen(p[k]), widen(g[k]), total, log));
        store_pack(dx + first + at, g);
      },
      y + first, dy + first);
}

// Calls run.operator()<Threads>(grid, block) with the fewest threads whose registers hold a row;
// Threads is 0 when no number suffices.
template <class T, class F>
void by_length(const Tensor& x, F&& run) {
  if (x.numel() == 0) return;
  const std::int64_t n = x.dim(-1), rows = x.numel() / n;
  constexpr int kSize = Slice<T, kWarp>::kSize, kMiddle = 128;
  if (n <= kWarp * kSize)
    run.template operator()<kWarp>(grid_of(blocks_for(rows, kRowsOfWarps)),
                                   dim3(kWarp, kRowsOfWarps));
  else if (n <= kMiddle * kSize)
    run.template operator()<kMiddle>(grid_of(rows), dim3(kMiddle));
  else if (n <= kMost * kSize)
    run.template operator()<kMost>(grid_of(rows), dim3(kMost));
  else
    run.template operator()<0>(grid_of(rows), dim3(kLong));
}

void forward(const Tensor& x, const Tensor& y, bool log) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    const T* px = x.data<T>();
    T* py = y.data<T>();
    by_length<T>(x, [&]<int Threads>(dim3 grid, dim3 block) {
      const std::int64_t n = x.dim(-1), rows = x.numel() / n;
      if constexpr (Threads == 0)
        launch(softmax_fwd_long_kernel<T>, grid, block, 0, px, py, n, log);
      else
        launch(softmax_fwd_kernel<Threads, T>, grid, block, 0, px, py, rows, n,
               packable(px, n) && packable(py, n), log);
    });
  });
}

void backward(const Tensor& y, const Tensor& dy, const Tensor& dx, bool log) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    const T *py = y.data<T>(), *pdy = dy.data<T>();
    T* pdx = dx.data<T>();
    by_length<T>(y, [&]<int Threads>(dim3 grid, dim3 block) {
      const std::int64_t n = y.dim(-1), rows = y.numel() / n;
      if constexpr (Threads == 0)
        launch(softmax_bwd_long_kernel<T>, grid, block, 0, py, pdy, pdx, n, log);
      else
        launch(softmax_bwd_kernel<Threads, T>, grid, block, 0, py, pdy, pdx, rows, n,
               packable(py, n) && packable(pdy, n) && packable(pdx, n), log);
    });
  });
}

}  // namespace

void softmax_fwd(const Tensor& x, const Tensor& y) { forward(x, y, false); }
void log_softmax_fwd(const Tensor& x, const Tensor& y) { forward(x, y, true); }
void softmax_bwd(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  backward(y, dy, dx, false);
}
void log_softmax_bwd(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  backward(y, dy, dx, true);
}

}  // namespace weft::cuda
