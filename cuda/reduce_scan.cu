// Kernels that depend on the position along the reduced axis: argmax, argmin, cumulative sums.
#include <limits>

#include "weft/core/kernels/reduce.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kNoPlace = std::numeric_limits<std::int64_t>::max();

/// The first best element seen so far; a NaN beats any number.
template <bool largest, class T>
struct Best {
  using Value = std::conditional_t<std::is_integral_v<T>, std::int64_t, Real<T>>;
  Value value = 0;
  std::int64_t place = kNoPlace;

  static __device__ bool better(Value a, Value b) {
    return (largest ? a > b : a < b) || (a != a && b == b);
  }
  static __device__ bool same(Value a, Value b) { return a == b || (a != a && b != b); }

  __device__ void see(T x, std::int64_t at) { merge({static_cast<Value>(x), at}); }
  __device__ void merge(const Best& o) {
    if (o.place == kNoPlace) return;
    if (place == kNoPlace || better(o.value, value) || (same(o.value, value) && o.place < place))
      *this = o;
  }
  /// Reduces each group of neighbouring lanes to its best; every lane receives it.
  __device__ void merge_warp() {
    for (int step = kWarp / 2; step > 0; step /= 2)
      merge({__shfl_xor_sync(kAllLanes, value, step), __shfl_xor_sync(kAllLanes, place, step)});
  }
};

// inner = 1: a row is computed by a block when `wide`, else by a warp.
template <bool largest, class T>
__global__ void __launch_bounds__(kThreads)
    arg_reduce_rows_kernel(const T* x, std::int64_t rows, std::int64_t n, std::int64_t* index,
                           bool wide) {
  using P = Pack<T>;
  using B = Best<largest, T>;
  WEFT_SHARED(values, typename B::Value[kThreads / kWarp]);
  WEFT_SHARED(places, std::int64_t[kThreads / kWarp]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t block = blockIdx.x;
  const std::int64_t row = wide ? block : block * (kThreads / kWarp) + warp;
  const int thread = wide ? static_cast<int>(threadIdx.x) : lane, threads = wide ? kThreads : kWarp;
  B best;
  if (row < rows) {
    const T* v = x + row * n;
    // Single elements up to the first 16-byte boundary, then packs, then single elements.
    const std::int64_t gap = -reinterpret_cast<std::uintptr_t>(v) % 16 / sizeof(T);
    const std::int64_t head = gap < n ? gap : n, packs = (n - head) / P::kCount;
    if (thread < head) best.see(v[thread], thread);
    for (std::int64_t i = thread; i < packs; i += threads) {
      const std::int64_t at = head + i * P::kCount;
      const P p = load_pack(v + at);
#pragma unroll
      for (int k = 0; k < P::kCount; ++k) best.see(p[k], at + k);
    }
    if (const std::int64_t at = head + packs * P::kCount + thread; at < n) best.see(v[at], at);
  }
  best.merge_warp();
  if (wide) {
    if (lane == 0) {
      values[warp] = best.value;
      places[warp] = best.place;
    }
    __syncthreads();
    best = {};
    if (lane < kThreads / kWarp) best = {values[lane], places[lane]};
    best.merge_warp();
  }
  if (thread == 0 && row < rows) index[row] = best.place;
}

// 32 columns per block, whose rows are distributed over its warps.
template <bool largest, class T>
__global__ void __launch_bounds__(kThreads)
    arg_reduce_columns_kernel(const T* x, ReduceExtent e, std::int64_t* index) {
  constexpr int kWarps = kThreads / kWarp;
  using B = Best<largest, T>;
  WEFT_SHARED(values, typename B::Value[kWarps][kWarp]);
  WEFT_SHARED(places, std::int64_t[kWarps][kWarp]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t i = std::int64_t{blockIdx.x} * kWarp + lane;
  const bool inside = i < e.outer * e.inner;
  B best;
  if (inside) {
    const T* column = x + i / e.inner * e.reduced * e.inner + i % e.inner;
    for (std::int64_t r = warp; r < e.reduced; r += kWarps) best.see(column[r * e.inner], r);
  }
  values[warp][lane] = best.value;
  places[warp][lane] = best.place;
  __syncthreads();
  if (warp == 0 && inside) {
    for (int w = 1; w < kWarps; ++w) best.merge({values[w][lane], places[w][lane]});
    index[i] = best.place;
  }
}

template <bool largest, class T>
void arg_reduce_typed(const T* x, const ReduceExtent& e, std::int64_t* index) {
  const std::int64_t results = e.outer * e.inner;
  if (e.inner == 1) {
    const bool wide = e.reduced > 2048 || (e.reduced > 256 && e.outer < 1024);
    launch(arg_reduce_rows_kernel<largest, T>,
           grid_of(wide ? results : blocks_for(results, kThreads / kWarp)), kThreads, 0, x, results,
           e.reduced, index, wide);
  } else {
    launch(arg_reduce_columns_kernel<largest, T>, grid_of(blocks_for(results, kWarp)), kThreads, 0,
           x, e, index);
  }
}

/// Inclusive prefix sum over the lanes.
template <class A>
__device__ inline A scan_warp(A v) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int step = 1; step < kWarp; step *= 2) {
    const A before = __shfl_up_sync(kAllLanes, v, step);
    if (lane >= step) v += before;
  }
  return v;
}

template <class O, class A>
__device__ inline O scan_result(A running) {
  if constexpr (kIsHalf<O>)
    return narrow<O>(static_cast<float>(running));
  else
    return static_cast<O>(running);
}

// inner = 1: a row is computed by a block when `wide`, else by a warp. Each thread scans kItems
// adjacent elements of a tile and adds the total of all earlier tiles.
constexpr int kItems = 8;

template <class A, class T, class O>
__global__ void __launch_bounds__(kThreads)
    cumsum_rows_kernel(const T* x, std::int64_t rows, std::int64_t n, bool reverse, O* out,
                       bool wide) {
  constexpr int kWarps = kThreads / kWarp;
  WEFT_SHARED(sums, A[kWarps]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t row =
      wide ? std::int64_t{blockIdx.x} : std::int64_t{blockIdx.x} * kWarps + warp;
  const int thread = wide ? static_cast<int>(threadIdx.x) : lane, threads = wide ? kThreads : kWarp;
  const bool inside = row < rows;
  const T* v = x + (inside ? row * n : 0);
  O* o = out + (inside ? row * n : 0);
  A carry = 0;
  for (std::int64_t tile = 0; tile < n; tile += threads * kItems) {
    const std::int64_t first = tile + thread * kItems;
    A items[kItems];
    A own = 0;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const std::int64_t i = first + k;
      if (inside && i < n) own += static_cast<A>(widen(v[reverse ? n - 1 - i : i]));
      items[k] = own;
    }
    const A upto = scan_warp(own);
    // Not upto - own, which is NaN from the first infinity on.
    const A lower = __shfl_up_sync(kAllLanes, upto, 1);
    A before = lane == 0 ? carry : carry + lower;
    A all = __shfl_sync(kAllLanes, upto, kWarp - 1);
    if (wide) {
      if (lane == 0) sums[warp] = all;
      __syncthreads();
      all = 0;
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += sums[w];
        all += sums[w];
      }
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const std::int64_t i = first + k;
      if (inside && i < n) o[reverse ? n - 1 - i : i] = scan_result<O>(before + items[k]);
    }
    carry += all;
  }
}

template <class A, class T, class O>
__global__ void __launch_bounds__(kThreads)
    cumsum_columns_kernel(const T* x, ReduceExtent e, bool reverse, O* out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= e.outer * e.inner) return;
  const std::int64_t first = i / e.inner * e.reduced * e.inner + i % e.inner;
  A running = 0;
  for (std::int64_t r = 0; r < e.reduced; ++r) {
    const std::int64_t at = first + (reverse ? e.reduced - 1 - r : r) * e.inner;
    running += static_cast<A>(widen(x[at]));
    out[at] = scan_result<O>(running);
  }
}

template <class A, class T, class O>
void cumsum_typed(const T* x, const ReduceExtent& e, bool reverse, O* out) {
  if (e.reduced == 0) return;
  if (e.inner == 1) {
    const bool wide = e.reduced > kWarp * kItems;
    launch(cumsum_rows_kernel<A, T, O>,
           grid_of(wide ? e.outer : blocks_for(e.outer, kThreads / kWarp)), kThreads, 0, x, e.outer,
           e.reduced, reverse, out, wide);
  } else {
    launch(cumsum_columns_kernel<A, T, O>, grid_of(blocks_for(e.outer * e.inner, kThreads)),
           kThreads, 0, x, e, reverse, out);
  }
}

}  // namespace

void arg_reduce(const Tensor& x, bool largest, const ReduceExtent& e, const Tensor& index) {
  dispatch_numeric(x.dtype(), [&]<class T>() {
    if (largest)
      arg_reduce_typed<true>(x.data<T>(), e, index.data<std::int64_t>());
    else
      arg_reduce_typed<false>(x.data<T>(), e, index.data<std::int64_t>());
  });
}

void cumsum(const Tensor& x, const ReduceExtent& e, bool reverse, const Tensor& out) {
  if (x.dtype() == DType::boolean)
    return cumsum_typed<std::uint64_t>(x.data<bool>(), e, reverse, out.data<std::int64_t>());
  dispatch_numeric(x.dtype(), [&]<class T>() {
    if constexpr (std::is_integral_v<T>)  // wraps around
      cumsum_typed<std::uint64_t>(x.data<T>(), e, reverse, out.data<std::int64_t>());
    else
      cumsum_typed<double>(x.data<T>(), e, reverse, out.data<T>());
  });
}

}  // namespace weft::cuda
