// Sums, extremes and related reductions. As on the CPU, a thread sums a few packs in f32 and these
// sums in f64; the threads of a result then combine in a tree.
#include <algorithm>

#include "weft/core/kernels/reduce.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;
// Loads in flight. Integer sums are rare and do not depend on grouping, so they get less code.
template <class T>
constexpr int kUnroll = std::is_integral_v<T> ? 1 : 4;

/// How one op reads an element (`take`); ReduceRule combines the results.
template <ReduceOp op, class T>
struct Rule : ReduceRule<op> {
  using Lane = std::conditional_t<std::is_integral_v<T>, std::int64_t, Real<T>>;

  /// The center in two parts: the bits beyond f32 matter when the values lie close to it.
  struct Center {
    Lane high = 0, low = 0;
  };
  static __device__ Center center(const double* at, std::int64_t i) {
    Center c;
    if (at) {
      c.high = static_cast<Lane>(at[i]);
      c.low = static_cast<Lane>(at[i] - static_cast<double>(c.high));
    }
    return c;
  }
  struct Join {
    template <class V>
    __device__ V operator()(V a, V b) const {
      return ReduceRule<op>::join(b, a);  // of two zeros the later one
    }
  };
  static __device__ Lane take(Lane a, T x, const Center& c) {
    const auto v = static_cast<Lane>(widen(x));
    const Lane d = (v - c.high) - c.low;
    if constexpr (op == ReduceOp::sum_offsets)
      return a + d;
    else if constexpr (op == ReduceOp::sum_squares)
      return a + d * d;
    else if constexpr (op == ReduceOp::sum_exp)
      return a + exp_of(d);
    else
      return Join{}(a, v);
  }
};

/// Output in any dtype that a reduction supports.
struct Output {
  void* data;
  DType dtype;
  double scale;

  __device__ void store(std::int64_t i, double total) const {
    const double v = total * scale;
    if (dtype == DType::f64)
      static_cast<double*>(data)[i] = v;
    else if (dtype == DType::f32)
      static_cast<float*>(data)[i] = static_cast<float>(v);
    else if (dtype == DType::bf16)
      static_cast<bf16*>(data)[i] = narrow<bf16>(static_cast<float>(v));
    else
      static_cast<f16*>(data)[i] = narrow<f16>(static_cast<float>(v));
  }
  __device__ void store(std::int64_t i, std::int64_t total) const {
    if (dtype == DType::i64)
      static_cast<std::int64_t*>(data)[i] = total;
    else if (dtype == DType::i32)
      static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(total);
    else
      static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(total);
  }
};

/// (outer, reduced, inner), with the reduced axis in chunks of `step`: there are outer x chunks x
/// inner results.
struct Pieces {
  std::int64_t outer, reduced, inner, chunks, step;

  __device__ std::int64_t length(std::int64_t chunk) const {
    const std::int64_t left = reduced - chunk * step;
    return left < 0 ? 0 : left < step ? left : step;
  }
};

/// The part of thread `thread` of `threads` (at least 32) in n adjacent elements: packs, and single
/// elements before the first 16-byte boundary and after the last.
template <class R, class T>
__device__ ReduceTotal<T> reduce_run(const T* x, std::int64_t n, typename R::Center center,
                                     int thread, int threads) {
  using Lane = typename R::Lane;
  using P = Pack<T>;
  const typename R::Join join;
  const std::int64_t gap = -reinterpret_cast<std::uintptr_t>(x) % 16 / sizeof(T);
  const std::int64_t head = gap < n ? gap : n, packs = (n - head) / P::kCount;
  const T* body = x + head;

  Lane edge = R::template start<Lane>();
  if (thread < head) edge = R::take(edge, x[thread], center);
  if (const std::int64_t at = head + packs * P::kCount + thread; at < n)
    edge = R::take(edge, x[at], center);
  auto total = static_cast<ReduceTotal<T>>(edge);

  std::int64_t i = thread;
  for (; i + (kUnroll<T> - 1) * threads < packs; i += kUnroll<T> * threads) {
    P v[kUnroll<T>];
#pragma unroll
    for (int u = 0; u < kUnroll<T>; ++u) v[u] = load_pack(body + (i + u * threads) * P::kCount);
    Lane lane = R::template start<Lane>();
#pragma unroll
    for (int u = 0; u < kUnroll<T>; ++u)
#pragma unroll
      for (int k = 0; k < P::kCount; ++k) lane = R::take(lane, v[u][k], center);
    total = join(total, static_cast<ReduceTotal<T>>(lane));
  }
  for (; i < packs; i += threads) {
    const P v = load_pack(body + i * P::kCount);
    Lane lane = R::template start<Lane>();
#pragma unroll
    for (int k = 0; k < P::kCount; ++k) lane = R::take(lane, v[k], center);
    total = join(total, static_cast<ReduceTotal<T>>(lane));
  }
  return total;
}

// inner = 1: each result is a chunk of a row, computed by a block when `wide`, else by a warp. Four
// blocks per multiprocessor let the compiler use 64 registers; by default it spills for f32 at 40.
template <ReduceOp op, class T>
__global__ void __launch_bounds__(kThreads, 4)
    reduce_rows_kernel(const T* x, Pieces p, const double* center, Output out, bool wide) {
  using R = Rule<op, T>;
  WEFT_SHARED(shared, ReduceTotal<T>[kThreads / kWarp]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t block = blockIdx.x;
  const std::int64_t i = wide ? block : block * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int thread = wide ? static_cast<int>(threadIdx.x) : lane;
  auto total = R::template start<ReduceTotal<T>>();
  if (i < p.outer * p.chunks) {
    const std::int64_t row = i / p.chunks, chunk = i % p.chunks;
    total = reduce_run<R>(x + row * p.reduced + chunk * p.step, p.length(chunk),
                          R::center(center, row), thread, wide ? kThreads : kWarp);
  }
  const typename R::Join join;
  total = wide ? block_reduce<kThreads>(total, shared, R::template start<ReduceTotal<T>>(), join)
               : warp_reduce(total, join);
  if (thread == 0 && i < p.outer * p.chunks) out.store(i, total);
}

// A thread computes V results at once: adjacent ones when they can be read as one pack, otherwise
// results that are a group of threads apart, so that the warp still reads adjacent addresses.
// `lines` (a power of two) threads share the rows of each result; blockIdx.y is the chunk.
// Two blocks per multiprocessor: for the sum of bf16 the compiler takes 166 registers otherwise.
template <ReduceOp op, class T, int V>
__global__ void __launch_bounds__(kThreads, 2)
    reduce_columns_kernel(const T* x, Pieces p, const double* center, Output out, int lines,
                          bool packed) {
  using R = Rule<op, T>;
  using Lane = typename R::Lane;
  const typename R::Join join;
  WEFT_SHARED(shared, ReduceTotal<T>[V][kThreads]);
  const int across = kThreads / lines, line = static_cast<int>(threadIdx.x) / across;
  const int column = static_cast<int>(threadIdx.x) % across;
  const std::int64_t results = p.outer * p.inner, first = std::int64_t{blockIdx.x} * across * V;
  const std::int64_t chunk = blockIdx.y, n = p.length(chunk);

  std::int64_t result[V], at[V];
  typename R::Center about[V];
  ReduceTotal<T> total[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    result[v] = first + (packed ? column * V + v : v * across + column);
    total[v] = R::template start<ReduceTotal<T>>();
    // Threads past the last result read the values of the last results and drop them.
    const std::int64_t last = results - 1 - (packed ? V - 1 - v : 0);
    const std::int64_t i = result[v] < results ? result[v] : last;
    at[v] = (i / p.inner * p.reduced + chunk * p.step) * p.inner + i % p.inner;
    about[v] = R::center(center, i);
  }
  for (std::int64_t r = line; r < n; r += std::int64_t{kUnroll<T>} * lines) {
    Lane lane[V];
    Pack<T, V> values[kUnroll<T>];
#pragma unroll
    for (int u = 0; u < kUnroll<T>; ++u) {
      const std::int64_t row = r + u * lines;
      if (row >= n) continue;
      if (packed) {
        values[u] = load_pack<T, V>(x + at[0] + row * p.inner);
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v) values[u][v] = x[at[v] + row * p.inner];
      }
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      lane[v] = R::template start<Lane>();
#pragma unroll
      for (int u = 0; u < kUnroll<T>; ++u)
        if (r + u * lines < n) lane[v] = R::take(lane[v], values[u][v], about[v]);
      total[v] = join(total[v], static_cast<ReduceTotal<T>>(lane[v]));
    }
  }
  if (lines > 1) {
#pragma unroll
    for (int v = 0; v < V; ++v) shared[v][threadIdx.x] = total[v];
    for (int half = lines / 2; half > 0; half /= 2) {
      __syncthreads();
      if (line < half) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          total[v] = join(total[v], shared[v][threadIdx.x + half * across]);
          shared[v][threadIdx.x] = total[v];
        }
      }
    }
  }
  if (line == 0) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (result[v] < results)
        out.store((result[v] / p.inner * p.chunks + chunk) * p.inner + result[v] % p.inner,
                  total[v]);
  }
}

// Rows up to this length are read by one thread each.
constexpr std::int64_t kShortRow = 32;

template <ReduceOp op, class T>
void reduce_pieces(const T* x, const Pieces& p, const double* center, const Output& out) {
  const std::int64_t results = p.outer * p.inner;
  if (results == 0) return;
  if (p.inner == 1 && p.step > kShortRow) {
    const std::int64_t rows = p.outer * p.chunks;
    const bool wide = p.step > 2048 || (p.step > 256 && rows < 1024);
    launch(reduce_rows_kernel<op, T>, grid_of(wide ? rows : blocks_for(rows, kThreads / kWarp)),
           kThreads, 0, x, p, center, out, wide);
    return;
  }
  constexpr int V = std::is_integral_v<T> ? 1 : 16 / static_cast<int>(sizeof(T));
  const bool packed = packable(x, p.inner);
  // More lines for few columns, while a warp reads adjacent addresses and each line has rows to
  // add.
  const std::int64_t columns = blocks_for(results, V);
  int lines = 1;
  while (lines < kThreads && columns * lines * p.chunks < (1 << 17) &&
         lines * kUnroll<T> < p.step && kThreads / lines > std::min<std::int64_t>(kWarp, columns))
    lines *= 2;
  launch(reduce_columns_kernel<op, T, V>,
         grid_of(blocks_for(results, std::int64_t{V} * kThreads / lines), p.chunks), kThreads, 0, x,
         p, center, out, lines, packed);
}

template <ReduceOp op, class T>
void reduce_op(const Tensor& x, const ReduceExtent& e, const Tensor& center, double scale,
               const Tensor& partial, const Tensor& out) {
  const T* px = x.data<T>();
  const double* pc = data_or_null<double>(center);
  const Output result{out.raw(), out.dtype(), scale};
  const std::int64_t chunks = reduce_chunks(e, x.device());
  if (chunks == 1)
    return reduce_pieces<op, T>(px, {e.outer, e.reduced, e.inner, 1, e.reduced}, pc, result);
  reduce_pieces<op, T>(px, {e.outer, e.reduced, e.inner, chunks, blocks_for(e.reduced, chunks)}, pc,
                       {partial.raw(), partial.dtype(), 1});
  // Partial sums of any kind are added.
  constexpr ReduceOp kJoin = Rule<op, T>::kExtreme ? op : ReduceOp::sum;
  reduce_pieces<kJoin, ReduceTotal<T>>(partial.data<ReduceTotal<T>>(),
                                       {e.outer, chunks, e.inner, 1, chunks}, nullptr, result);
}

}  // namespace

void reduce(const Tensor& x, ReduceOp op, const ReduceExtent& e, const Tensor& center, double scale,
            const Tensor& partial, const Tensor& out) {
  with_reduce(op, x.dtype(),
              [&]<ReduceOp R, class T>() { reduce_op<R, T>(x, e, center, scale, partial, out); });
}

}  // namespace weft::cuda
