// Attention for every dtype and head dim, on plain f32 and f64 arithmetic. A block has a tile of 32
// rows (queries, or keys where dk and dv are computed) and passes over tiles of 32 columns (the
// other ones); a warp has 4 of the rows, a lane one column. Heads are taken 64 elements at a time.
#include <limits>

#include "weft/cuda/attention_args.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda::generic {
namespace {

constexpr int kThreads = 256, kTile = 32, kDepth = 64, kRows = 4;
static_assert(kThreads / kWarp * kRows == kTile);

// Rows are read by one warp as a whole, columns by each lane for itself: those have an odd
// distance.
template <class R>
struct Shared {
  R rows[kTile][kDepth];
  R columns[kTile][kDepth + 1];
  R weights[kTile][kTile + 4];
};

/// n tokens of a head, the first of them at p.
template <class T>
struct Tokens {
  const T* p;
  std::int64_t distance;
  int n;
};

/// Elements [c, c + 64) of the tokens; zeros beyond the tokens and the head.
template <class T, class R, int Width>
__device__ void load(R (&to)[kTile][Width], const Tokens<T>& x, int c, int head_dim) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
    const int row = i / kDepth, column = i % kDepth;
    const bool there = row < x.n && c + column < head_dim;
    to[row][column] = there ? static_cast<R>(x.p[row * x.distance + c + column]) : R(0);
  }
}

/// out[i] = the dot product of row 4 warp + i and column `lane`.
template <class T, class R>
__device__ void dot_products(R (&out)[kRows], const Tokens<T>& rows, const Tokens<T>& columns,
                             int head_dim, Shared<R>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>(threadIdx.x) / kWarp * kRows;
  for (int i = 0; i < kRows; ++i) out[i] = 0;
  for (int c = 0; c < head_dim; c += kDepth) {
    load(s.rows, rows, c, head_dim);
    load(s.columns, columns, c, head_dim);
    __syncthreads();
#pragma unroll 4
    for (int d = 0; d < kDepth; d += 4) {
      R b[4];
      for (int j = 0; j < 4; ++j) b[j] = s.columns[lane][d + j];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const auto a = load_pack<R, 4>(&s.rows[first + i][d]);
#pragma unroll
        for (int j = 0; j < 4; ++j) out[i] += a[j] * b[j];
      }
    }
    __syncthreads();
  }
}

/// sums[c][i][h], element 64 c + 32 h + lane of row 4 warp + i, += weights x columns. The warp's
/// rows of s.weights are its own.
template <int Chunks, class T, class R>
__device__ void add_products(R (&sums)[Chunks][kRows][2], const Tokens<T>& columns, int head_dim,
                             Shared<R>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>(threadIdx.x) / kWarp * kRows;
#pragma unroll
  for (int c = 0; c < Chunks; ++c) {
    if (c * kDepth < head_dim) {
      load(s.columns, columns, c * kDepth, head_dim);
      __syncthreads();
#pragma unroll 2
      for (int k = 0; k < kTile; k += 4) {
        R b[4][2];
        for (int j = 0; j < 4; ++j)
          for (int h = 0; h < 2; ++h) b[j][h] = s.columns[k + j][lane + kWarp * h];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const auto w = load_pack<R, 4>(&s.weights[first + i][k]);
#pragma unroll
          for (int j = 0; j < 4; ++j)
            for (int h = 0; h < 2; ++h) sums[c][i][h] += w[j] * b[j][h];
        }
      }
      __syncthreads();
    }
  }
}

/// One row of sums, times factor, to `out`.
template <int Chunks, class T, class R>
__device__ void store(T* out, const R (&sums)[Chunks][kRows][2], int i, R factor, int head_dim) {
#pragma unroll
  for (int c = 0; c < Chunks; ++c)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int d = c * kDepth + h * kWarp + static_cast<int>(threadIdx.x) % kWarp;
      if (d < head_dim) out[d] = narrow<T>(sums[c][i][h] * factor);
    }
}

template <class T, int Chunks>
__global__ void __launch_bounds__(kThreads, 1)
    attention_generic_fwd_kernel(AttentionArgs a, const T* q, const T* k, const T* v, T* y,
                                 Real<T>* lse) {
  using R = Real<T>;
  constexpr R kInf = std::numeric_limits<R>::infinity();
  WEFT_SHARED(s, Shared<R>);
  const TileOfHead at((a.queries + kTile - 1) / kTile, a.heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int mine = static_cast<int>(threadIdx.x) / kWarp * kRows;
  const int first = at.tile * kTile, n = least(kTile, a.queries - first), d = a.head_dim;
  const int kv = at.head / a.share();
  const std::int64_t query = std::int64_t{at.batch} * a.queries + first;
  const Tokens<T> queries{q + query * a.ldq + at.head * d, a.ldq, n};
  const int begin = a.keys_of(first).begin, end = a.keys_of(first + n - 1).end;
  Range seen[kRows];
  R high[kRows], sum[kRows], sums[Chunks][kRows][2] = {};
  for (int i = 0; i < kRows; ++i) {
    seen[i] = mine + i < n ? a.keys_of(first + mine + i) : Range{0, 0};
    high[i] = -kInf;
    sum[i] = 0;
  }

  for (int from = begin; from < end; from += kTile) {
    const int m = least(kTile, end - from), key = from + lane;
    const std::int64_t token = std::int64_t{at.batch} * a.keys + from;
    R x[kRows];
    dot_products(x, queries, Tokens<T>{k + token * a.ldk + kv * d, a.ldk, m}, d, s);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const R score = seen[i].contains(key) ? x[i] * static_cast<R>(a.scale) : -kInf;
      const R top = Max{}(high[i], warp_max(score));
      const R shift = top == -kInf ? R(0) : top;
      R p = exp_of(score - shift);
      const R shrink = exp_of(high[i] - shift);
      high[i] = top;
      sum[i] = sum[i] * shrink + warp_sum(p);
      if (a.drop_below != 0 && p != 0)
        p *= a.drops(a.row(at.batch, at.head, first + mine + i), key) ? R(0)
                                                                      : static_cast<R>(a.kept);
      s.weights[mine + i][lane] = p;
      for (int c = 0; c < Chunks; ++c)
        for (int h = 0; h < 2; ++h) sums[c][i][h] *= shrink;
    }
    __syncwarp();
    add_products(sums, Tokens<T>{v + token * a.ldv + kv * d, a.ldv, m}, d, s);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (mine + i >= n) continue;
    const int row = mine + i;
    store(y + ((query + row) * a.heads + at.head) * d, sums, i, sum[i] == 0 ? R(0) : 1 / sum[i], d);
    if (lane == 0)
      lse[a.row(at.batch, at.head, first + row)] = sum[i] == 0 ? -kInf : high[i] + log_of(sum[i]);
  }
}

template <class T, int Chunks>
__global__ void __launch_bounds__(kThreads, 1)
    attention_generic_dq_kernel(AttentionArgs a, const T* q, const T* k, const T* v, const T* dy,
                                const Real<T>* scratch, T* dq) {
  using R = Real<T>;
  WEFT_SHARED(s, Shared<R>);
  const TileOfHead at((a.queries + kTile - 1) / kTile, a.heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int mine = static_cast<int>(threadIdx.x) / kWarp * kRows;
  const int first = at.tile * kTile, n = least(kTile, a.queries - first), d = a.head_dim;
  const int kv = at.head / a.share();
  const std::int64_t query = std::int64_t{at.batch} * a.queries + first;
  const std::int64_t out = (query * a.heads + at.head) * d, distance = std::int64_t{a.heads} * d;
  const Tokens<T> queries{q + query * a.ldq + at.head * d, a.ldq, n};
  const Tokens<T> grads{dy + out, distance, n};
  const R* pairs = row_pairs(scratch, a, at.batch, at.head) + 2 * (first + mine);
  const int begin = a.keys_of(first).begin, end = a.keys_of(first + n - 1).end;
  Range seen[kRows];
  R sums[Chunks][kRows][2] = {};
  for (int i = 0; i < kRows; ++i)
    seen[i] = mine + i < n ? a.keys_of(first + mine + i) : Range{0, 0};

  for (int from = begin; from < end; from += kTile) {
    const int m = least(kTile, end - from), key = from + lane;
    const std::int64_t token = std::int64_t{at.batch} * a.keys + from;
    const Tokens<T> keys{k + token * a.ldk + kv * d, a.ldk, m};
    R x[kRows], dp[kRows];
    dot_products(x, queries, keys, d, s);
    dot_products(dp, grads, Tokens<T>{v + token * a.ldv + kv * d, a.ldv, m}, d, s);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      R ds = 0;
      if (seen[i].contains(key)) {
        const R p = exp_of(x[i] * static_cast<R>(a.scale) - pairs[2 * i]);
        if (a.drop_below != 0)
          dp[i] *= a.drops(a.row(at.batch, at.head, first + mine + i), key)
                       ? R(0)
                       : static_cast<R>(a.kept);
        ds = p * (dp[i] - pairs[2 * i + 1]);
      }
      s.weights[mine + i][lane] = ds;
    }
    __syncwarp();
    add_products(sums, keys, d, s);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (mine + i < n) store(dq + out + (mine + i) * distance, sums, i, static_cast<R>(a.scale), d);
}

// Rows are keys here and columns queries: all query heads of the key head pass by, one after
// another.
template <class T, int Chunks>
__global__ void __launch_bounds__(kThreads, 1)
    attention_generic_dkdv_kernel(AttentionArgs a, const T* q, const T* k, const T* v, const T* dy,
                                  const Real<T>* scratch, T* dk, T* dv) {
  using R = Real<T>;
  WEFT_SHARED(s, Shared<R>);
  const TileOfHead at((a.keys + kTile - 1) / kTile, a.kv_heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int mine = static_cast<int>(threadIdx.x) / kWarp * kRows;
  const int first = at.tile * kTile, n = least(kTile, a.keys - first), d = a.head_dim;
  const std::int64_t token = std::int64_t{at.batch} * a.keys + first;
  const Tokens<T> keys{k + token * a.ldk + at.head * d, a.ldk, n};
  const Tokens<T> values{v + token * a.ldv + at.head * d, a.ldv, n};
  const int begin = a.queries_of(first).begin, end = a.queries_of(first + n - 1).end;
  Range seen[kRows];
  R sum_k[Chunks][kRows][2] = {}, sum_v[Chunks][kRows][2] = {};
  for (int i = 0; i < kRows; ++i)
    seen[i] = mine + i < n ? a.queries_of(first + mine + i) : Range{0, 0};

  for (int head = at.head * a.share(); head < (at.head + 1) * a.share(); ++head) {
    const R* const pairs = row_pairs(scratch, a, at.batch, head);
    for (int from = begin; from < end; from += kTile) {
      const int m = least(kTile, end - from), query = from + lane;
      const std::int64_t row = std::int64_t{at.batch} * a.queries + from;
      const Tokens<T> queries{q + row * a.ldq + head * d, a.ldq, m};
      const Tokens<T> grads{dy + (row * a.heads + head) * d, std::int64_t{a.heads} * d, m};
      R x[kRows], ds[kRows];
      dot_products(x, keys, queries, d, s);
      dot_products(ds, values, grads, d, s);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        R p = 0, factor = 1;
        if (seen[i].contains(query)) {
          p = exp_of(x[i] * static_cast<R>(a.scale) - pairs[2 * query]);
          if (a.drop_below != 0)
            factor = a.drops(a.row(at.batch, head, query), first + mine + i)
                         ? R(0)
                         : static_cast<R>(a.kept);
          ds[i] = p * (ds[i] * factor - pairs[2 * query + 1]);
        } else {
          ds[i] = 0;
        }
        s.weights[mine + i][lane] = p * factor;
      }
      __syncwarp();
      add_products(sum_v, grads, d, s);
      for (int i = 0; i < kRows; ++i) s.weights[mine + i][lane] = ds[i];
      __syncwarp();
      add_products(sum_k, queries, d, s);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (mine + i >= n) continue;
    const std::int64_t out = ((token + mine + i) * a.kv_heads + at.head) * d;
    store(dk + out, sum_k, i, static_cast<R>(a.scale), d);
    store(dv + out, sum_v, i, R(1), d);
  }
}

/// f.template operator()<T, Chunks>(): the dtype and how many times 64 elements a head has at most.
template <class F>
void dispatch_heads(DType dtype, std::int64_t head_dim, F f) {
  dispatch_floating(dtype, [&]<class T>() {
    head_dim <= kDepth ? f.template operator()<T, 1>() : f.template operator()<T, 4>();
  });
}

dim3 tiles_of_heads(std::int64_t tokens, std::int64_t heads, std::int64_t batch) {
  return grid_of(blocks_for(tokens, kTile) * heads * batch);
}

}  // namespace

void attention_fwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                   const AttentionSpec& spec, const Tensor& y, const Tensor& lse) {
  const AttentionArgs a = attention_args(q, k, v, cu_seqlens, spec);
  dispatch_heads(q.dtype(), spec.head_dim, [&]<class T, int Chunks>() {
    launch(attention_generic_fwd_kernel<T, Chunks>,
           tiles_of_heads(spec.queries, spec.heads, spec.batch), dim3(kThreads), 0, a, q.data<T>(),
           k.data<T>(), v.data<T>(), y.data<T>(), lse.data<Real<T>>());
  });
}

void attention_bwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                   const AttentionSpec& spec, const Tensor& /*y*/, const Tensor& /*lse*/,
                   const Tensor& dy, const Tensor& scratch, const Tensor& dq, const Tensor& dk,
                   const Tensor& dv) {
  const AttentionArgs a = attention_args(q, k, v, cu_seqlens, spec);
  dispatch_heads(q.dtype(), spec.head_dim, [&]<class T, int Chunks>() {
    const Real<T>* pairs = scratch.data<Real<T>>();
    launch(attention_generic_dq_kernel<T, Chunks>,
           tiles_of_heads(spec.queries, spec.heads, spec.batch), dim3(kThreads), 0, a, q.data<T>(),
           k.data<T>(), v.data<T>(), dy.data<T>(), pairs, dq.data<T>());
    launch(attention_generic_dkdv_kernel<T, Chunks>,
           tiles_of_heads(spec.keys, spec.kv_heads, spec.batch), dim3(kThreads), 0, a, q.data<T>(),
           k.data<T>(), v.data<T>(), dy.data<T>(), pairs, dk.data<T>(), dv.data<T>());
  });
}

}  // namespace weft::cuda::generic
