#pragma once
// Building blocks of attention on tensor cores: tiles of tokens in shared memory, their fragments
// in registers (named as in cuda/ptx.h), and the two kinds of product. Four warps work on one tile,
// each on its own 16 or 32 rows.
#include <limits>

#include "weft/cuda/attention_args.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {

inline constexpr int kTileThreads = 128, kTileWarps = kTileThreads / kWarp;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x & 31); }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x >> 5); }

/// f(m, n, h, e, row, column) for each element c[m][n][2 h + e] of this lane's fragments, with its
/// position in the rows of the warp.
template <int M, int N, class F>
__device__ inline void each_element(F f) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          f(m, n, h, e, 16 * m + lane_id() / 4 + 8 * h, 8 * n + lane_id() % 4 * 2 + e);
}

/// The index of an element in a tile of D columns. Pieces of 16 bytes are swizzled within the row,
/// so that the eight rows which ldmatrix reads at once lie in different banks.
template <int D>
__device__ inline int place(int row, int column) {
  return row * D + (((column >> 3) ^ (row & 7)) << 3) + (column & 7);
}

/// Starts to copy n >= 1 tokens of a head into a tile; zeros for the rest of its rows.
template <int Rows, int D, class T>
__device__ inline void copy_tokens(T* tile, const T* from, std::int64_t distance, int n) {
  constexpr int kPieces = D / 8, kRows = kTileThreads / kPieces;  // at a time
  const int thread = static_cast<int>(threadIdx.x);
  const int first = thread / kPieces, column = thread % kPieces * 8;
  const T* p = from + first * distance + column;
#pragma unroll
  for (int row = first, step = 0; step < Rows / kRows; ++step, row += kRows) {
    const bool there = row < n;
    cp_async16(tile + place<D>(row, column), there ? p : from, there);
    p += kRows * distance;
  }
}

/// Rows [row, row + 16), columns [k, k + 16) of a tile, as A.
template <int D, class T>
__device__ inline void load_a(std::uint32_t (&a)[4], const T* tile, int row, int k) {
  const int lane = lane_id();
  ldmatrix_x4<false>(a, tile + place<D>(row + lane % 16, k + lane / 16 * 8));
}

/// The whole depth of one warp's rows, as A.
template <class T, int M, int D>
struct RowFragments {
  std::uint32_t a[M][D / 16][4];
  __device__ void load(const T* tile, int row) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int k = 0; k < D / 16; ++k) load_a<D>(a[m][k], tile, row + 16 * m, 16 * k);
  }
  __device__ void get(std::uint32_t (&out)[4], int m, int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = a[m][k][i];
  }
};
/// The same, left in shared memory where registers are short.
template <class T, int D>
struct RowsInTile {
  const T* tile;
  int row;
  __device__ void load(const T* t, int r) { tile = t, row = r; }
  __device__ void get(std::uint32_t (&out)[4], int m, int k) const {
    load_a<D>(out, tile, row + 16 * m, 16 * k);
  }
};

/// c (16 M, N) = the dot products of the warp's rows and the N rows of a tile.
template <int M, int N, int D, class Rows, class T>
__device__ inline void dot_tile(float (&c)[M][N / 8][4], const Rows& rows, const T* tile) {
  const int lane = lane_id();
  each_element<M, N>([&](int m, int n, int h, int e, int, int) { c[m][n][2 * h + e] = 0; });
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    std::uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) rows.get(a[m], m, k);
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      std::uint32_t b[4];  // of 16 columns: two fragments
      ldmatrix_x4<false>(
          b, tile + place<D>(16 * n + lane % 8 + lane / 16 * 8, 16 * k + lane / 8 % 2 * 8));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma_16816<T>(c[m][2 * n], a[m], b[0], b[1]);
        mma_16816<T>(c[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// c (16 M, D) += w x tile, w (16 M, N) rounded to T: C fragments of one product are A fragments
/// of the next and stay in registers.
template <int M, int N, int D, class T>
__device__ inline void add_weighted_tile(float (&c)[M][D / 8][4], const float (&w)[M][N / 8][4],
                                         const T* tile) {
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
    std::uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&two)[4] = w[m][2 * k + i / 2];
        a[m][i] = pack_halves<T>(two[i % 2 * 2], two[i % 2 * 2 + 1]);
      }
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      std::uint32_t b[4];
      ldmatrix_x4<true>(b, tile + place<D>(16 * k + lane % 16, 16 * n + lane / 16 * 8));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma_16816<T>(c[m][2 * n], a[m], b[0], b[1]);
        mma_16816<T>(c[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Writes the warp's rows, from `row` of the tile on, as tokens of a head. They pass through the
/// tile, whose rows no other warp may still use, so that memory is written 16 bytes at a time. The
/// first n rows of the tile are tokens; `out` is the first of them.
template <int M, int D, class T>
__device__ inline void store_tokens(const float (&c)[M][D / 8][4], T* tile, int row, T* out,
                                    std::int64_t distance, int n) {
  constexpr int kPieces = D / 8;
  const int lane = lane_id();
  __syncwarp();
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < D / 8; ++i)
        *reinterpret_cast<std::uint32_t*>(
            tile + place<D>(row + 16 * m + lane / 4 + 8 * h, 8 * i + lane % 4 * 2)) =
            pack_halves<T>(c[m][i][2 * h], c[m][i][2 * h + 1]);
  __syncwarp();
#pragma unroll
  for (int step = 0; step < 16 * M * kPieces / kWarp; ++step) {
    const int i = step * kWarp + lane, r = row + i / kPieces, column = i % kPieces * 8;
    if (r < n) store_pack(out + r * distance + column, load_pack(tile + place<D>(r, column)));
  }
}

/// The tile of rows in the backward's passes. Those of a narrow head stay in registers.
inline constexpr int kRowsOfTile = kTileWarps * 16;
template <class T, int D>
using Rows = std::conditional_t<D == 64, RowFragments<T, 1, D>, RowsInTile<T, D>>;

/// The two passes of the backward, for operands that fit. Both recompute the probabilities from
/// scores and lse. A block of the first has a tile of 64 queries and loops over the keys, a block
/// of the second has 64 keys and loops over the queries: each sum has one writer and one order.
void attention_dq(const AttentionArgs& a, const AttentionIn& in, const AttentionSpec& spec,
                  const Tensor& dy, const AttentionGrads& out);
void attention_dkdv(const AttentionArgs& a, const AttentionIn& in, const AttentionSpec& spec,
                    const Tensor& dy, const AttentionGrads& out);

/// Can the tokens be copied 16 bytes at a time?
inline bool aligned_tokens(const Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0 && token_distance(t) % 8 == 0;
}
/// Are there kernels on tensor cores for these operands?
inline bool fits_tiles(const Tensor& q, const Tensor& k, const Tensor& v) {
  return is_half(q.dtype()) && (q.dim(3) == 64 || q.dim(3) == 128) && v.dim(3) == q.dim(3) &&
         aligned_tokens(q) && aligned_tokens(k) && aligned_tokens(v);
}

/// f.template operator()<T, D, Dropout>() for operands that fit.
template <class F>
void dispatch_tiles(DType dtype, const AttentionSpec& a, F f) {
  const auto with = [&]<class T>() {
    if (a.head_dim == 64)
      a.dropout > 0 ? f.template operator()<T, 64, true>() : f.template operator()<T, 64, false>();
    else
      a.dropout > 0 ? f.template operator()<T, 128, true>()
                    : f.template operator()<T, 128, false>();
  };
  dtype == DType::bf16 ? with.template operator()<bf16>() : with.template operator()<f16>();
}

}  // namespace weft::cuda
