#pragma once
#include "weft/core/kernels/gated_delta.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {

// A block of threads works on one head of one chunk. Its matrices are cut into tiles of 64 x 64, of
// which every thread keeps 4 x 4 elements in registers.
inline constexpr int kDeltaThreads = 256, kDeltaSide = 64, kDeltaDepth = 16, kDeltaOwn = 4;
static_assert(kDeltaSide == kDeltaChunk);

/// Slices of both factors of a product, the common axis first.
template <class R>
struct DeltaStage {
  R a[kDeltaDepth][kDeltaSide + 4], b[kDeltaDepth][kDeltaSide + 4];
};

/// Puts load(i, p), for 64 of i and the 16 of p from `first` on, into to[p][i]. AlongDepth: p is
/// the neighbour in memory.
template <bool AlongDepth, class R, class Load>
__device__ inline void delta_stage(R (&to)[kDeltaDepth][kDeltaSide + 4], int first, int depth,
                                   Load load) {
  for (int e = static_cast<int>(threadIdx.x); e < kDeltaSide * kDeltaDepth; e += kDeltaThreads) {
    const int p = AlongDepth ? e % kDeltaDepth : e / kDeltaSide;
    const int i = AlongDepth ? e / kDeltaDepth : e % kDeltaSide;
    to[p][i] = first + p < depth ? load(i, first + p) : R(0);
  }
}

/// This thread's part of a tile: element (r, c) is (row(r), column(c)).
template <class R>
struct DeltaTile {
  R v[kDeltaOwn][kDeltaOwn] = {};

  __device__ static int row(int r) {
    return static_cast<int>(threadIdx.x) / (kDeltaSide / kDeltaOwn) * kDeltaOwn + r;
  }
  __device__ static int column(int c) {
    return static_cast<int>(threadIdx.x) % (kDeltaSide / kDeltaOwn) * kDeltaOwn + c;
  }
  /// f(row, column, value&)
  template <class F>
  __device__ void each(F f) {
#pragma unroll
    for (int r = 0; r < kDeltaOwn; ++r)
#pragma unroll
      for (int c = 0; c < kDeltaOwn; ++c) f(row(r), column(c), v[r][c]);
  }
  /// Adds the product of a (64, depth) and b (depth, 64), given as a(i, p) and b(j, p).
  template <bool AAlongDepth, bool BAlongDepth, class A, class B>
  __device__ void add(DeltaStage<R>& stage, int depth, A a, B b) {
    for (int first = 0; first < depth; first += kDeltaDepth) {
      __syncthreads();
      delta_stage<AAlongDepth>(stage.a, first, depth, a);
      delta_stage<BAlongDepth>(stage.b, first, depth, b);
      __syncthreads();
#pragma unroll(sizeof(R) == 8 ? 2 : kDeltaDepth)  // f64 only checks gradients
      for (int p = 0; p < kDeltaDepth; ++p) {
        const auto left = load_pack<R, kDeltaOwn>(&stage.a[p][row(0)]);
        const auto right = load_pack<R, kDeltaOwn>(&stage.b[p][column(0)]);
#pragma unroll
        for (int r = 0; r < kDeltaOwn; ++r)
#pragma unroll
          for (int c = 0; c < kDeltaOwn; ++c) v[r][c] += left[r] * right[c];
      }
    }
  }
  /// sums[row] += the sum over the columns of f(row, column, value). f must return 0 outside the
  /// matrix. Every row has one writer.
  template <class F>
  __device__ void add_row_sums(R* sums, F f) {
#pragma unroll
    for (int r = 0; r < kDeltaOwn; ++r) {
      R sum = 0;
#pragma unroll
      for (int c = 0; c < kDeltaOwn; ++c) sum += f(row(r), column(c), v[r][c]);
      sum = warp_reduce<kDeltaSide / kDeltaOwn>(sum, Sum{});
      if (column(0) == 0) sums[row(r)] += sum;
    }
  }
};

template <class R>
using DeltaSquare = R[kDeltaSide][kDeltaSide + 1];

/// The decays of a chunk: the logarithms are summed in f64, since their differences are small
/// numbers between large ones.
template <class R>
struct DeltaDecays {
  double log[kDeltaSide];
  R beta[kDeltaSide], from_start[kDeltaSide], to_end[kDeltaSide];

  /// All threads call it; a barrier follows. Rows after the end of the chunk get 0 as factors.
  __device__ void load(const R* g, const R* b, std::int64_t stride, int n) {
    const int i = static_cast<int>(threadIdx.x);
    if (i < kDeltaSide) {
      double sum = 0, mine = 0;
      for (int j = 0; j < n; ++j) {
        sum += delta_log_decay(g[j * stride]);
        if (j == i) mine = sum;
      }
      log[i] = mine;
      beta[i] = i < n ? b[i * stride] : R(0);
      from_start[i] = i < n ? exp_of(static_cast<R>(mine)) : R(0);
      to_end[i] = i < n ? exp_of(static_cast<R>(sum - mine)) : R(0);
    }
    __syncthreads();
  }
  /// The decay from token j to token i, j <= i.
  __device__ R between(int i, int j) const { return exp_of(static_cast<R>(log[i] - log[j])); }
  /// What n tokens leave of the state.
  __device__ R whole(int n) const { return from_start[n - 1]; }
};

/// Where one head of one chunk finds its rows.
template <class T, class R>
struct DeltaRows {
  const T *q, *k, *v;
  const R *g, *beta;
  std::int64_t key_row, value_row;  ///< from one token to the next
  int n, K, V;

  __device__ DeltaRows(const GatedDeltaSpec& s, const DeltaChunk& at, std::int64_t head,
                       const T* pq, const T* pk, const T* pv, const R* pg, const R* pbeta)
      : key_row(s.key_heads * s.key_dim),
        value_row(s.value_heads * s.value_dim),
        n(static_cast<int>(at.count)),
        K(static_cast<int>(s.key_dim)),
        V(static_cast<int>(s.value_dim)) {
    const std::int64_t key_head = head / (s.value_heads / s.key_heads);
    q = pq + at.first * key_row + key_head * s.key_dim;
    k = pk + at.first * key_row + key_head * s.key_dim;
    v = pv + at.first * value_row + head * s.value_dim;
    g = pg + at.first * s.value_heads + head;
    beta = pbeta + at.first * s.value_heads + head;
  }
  __device__ R query(int i, int c) const {
    return i < n && c < K ? widen(q[i * key_row + c]) : R(0);
  }
  __device__ R key(int i, int c) const { return i < n && c < K ? widen(k[i * key_row + c]) : R(0); }
  __device__ R value(int i, int c) const {
    return i < n && c < V ? widen(v[i * value_row + c]) : R(0);
  }
};

/// P = scale (q k^T) under the decays, lower triangular. A barrier follows.
template <class T, class R>
__device__ inline void delta_output_weights(const DeltaRows<T, R>& rows,
                                            const DeltaDecays<R>& decay, R scale,
                                            DeltaStage<R>& stage, DeltaSquare<R>& p) {
  DeltaTile<R> tile;
  tile.template add<true, true>(
      stage, rows.K, [&](int i, int c) { return rows.query(i, c); },
      [&](int j, int c) { return rows.key(j, c); });
  tile.each([&](int i, int j, R& x) {
    p[i][j] = j <= i && i < rows.n ? scale * x * decay.between(i, j) : R(0);
  });
  __syncthreads();
}

/// W and U of the updates X = U - W S, and their common factor (I + A)^-1; see gated_delta.cu.
template <class T, class R>
void delta_prepare(const GatedDeltaSpec& s, const T* k, const T* v, const R* g, const R* beta, R* w,
                   R* x, R* inverse);

}  // namespace weft::cuda
