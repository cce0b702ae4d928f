#pragma once
// Attention for every dtype and head dim, in plain f32 and f64 arithmetic. A block has a tile of 32
// rows (queries; keys for dk and dv) and loops over tiles of 32 columns (keys; queries for dk and
// dv). A warp has 4 of the rows, a lane one column. Heads are processed 64 elements at a time.
#include "weft/cuda/attention_args.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda::generic {

inline constexpr int kThreads = 256, kTile = 32, kDepth = 64, kRows = 4;
static_assert(kThreads / kWarp * kRows == kTile);

// A warp reads a row together; each lane reads its own column, so columns have an odd stride.
template <class R>
struct Shared {
  R rows[kTile][kDepth];
  R columns[kTile][kDepth + 1];
  R weights[kTile][kTile + 4];
};

/// n tokens of a head, the first at p.
template <class T>
struct Tokens {
  const T* p;
  std::int64_t distance;
  int n;
};

/// Elements [c, c + 64) of the tokens; zeros beyond the tokens and the head.
template <class T, class R, int Width>
__device__ inline void load(R (&to)[kTile][Width], const Tokens<T>& x, int c, int head_dim) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
    const int row = i / kDepth, column = i % kDepth;
    const bool there = row < x.n && c + column < head_dim;
    to[row][column] = there ? widen(x.p[row * x.distance + c + column]) : R(0);
  }
}

/// out[i] = the dot product of row 4 warp + i and column `lane`.
template <class T, class R>
__device__ inline void dot_products(R (&out)[kRows], const Tokens<T>& rows,
                                    const Tokens<T>& columns, int head_dim, Shared<R>& s) {
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
__device__ inline void add_products(R (&sums)[Chunks][kRows][2], const Tokens<T>& columns,
                                    int head_dim, Shared<R>& s) {
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
__device__ inline void store(T* out, const R (&sums)[Chunks][kRows][2], int i, R factor,
                             int head_dim) {
#pragma unroll
  for (int c = 0; c < Chunks; ++c)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int d = c * kDepth + h * kWarp + static_cast<int>(threadIdx.x) % kWarp;
      if (d < head_dim) out[d] = narrow<T>(sums[c][i][h] * factor);
    }
}

/// f.template operator()<T, Chunks>(): the dtype, and the largest head in chunks of 64 elements.
/// f64, which is for gradient checks, has the kernels for wide heads only.
template <class F>
void dispatch_heads(DType dtype, const AttentionSpec& a, F f) {
  dispatch_floating(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>)
      if (a.head_dim <= kDepth && a.value_dim <= kDepth) return f.template operator()<T, 1>();
    f.template operator()<T, 4>();
  });
}

inline dim3 tiles_of_heads(std::int64_t tokens, std::int64_t heads, std::int64_t batch) {
  return grid_of(blocks_for(tokens, kTile) * heads * batch);
}

}  // namespace weft::cuda::generic
