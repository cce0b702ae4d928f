#pragma once
// A token's row of logits in the shared memory of its warp.
#include <limits>

#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {

inline constexpr int kTokensOfBlock = 4;  // one warp per token

template <class R>
constexpr R kLowest = -std::numeric_limits<R>::infinity();

/// Copies a row of n into shared memory as R; the whole warp must call it.
template <class T, class R>
__device__ inline void load_row(const T* x, int n, bool packed, R* row) {
  const int lane = static_cast<int>(threadIdx.x);
  if (packed) {
    constexpr int P = Pack<T>::kCount;
    for (int e = lane * P; e < n; e += kWarp * P) {
      const Pack<T> pack = load_pack(x + e);
#pragma unroll
      for (int i = 0; i < P; ++i) row[e + i] = widen(pack[i]);
    }
  } else {
    for (int e = lane; e < n; e += kWarp) row[e] = widen(x[e]);
  }
  __syncwarp();
}

/// The largest element and the sum of exp(x - largest) of a row in shared memory.
template <class R>
__device__ inline void exp_sum_of(const R* row, int n, R& top, R& sum) {
  top = kLowest<R>;
  sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < n; e += kWarp) top = Max{}(row[e], top);
  top = warp_max(top);
  for (int e = static_cast<int>(threadIdx.x); e < n; e += kWarp) sum += exp_of(row[e] - top);
  sum = warp_sum(sum);
}

/// Copies a row from shared memory; the warp must have synchronised since it was written.
template <class T, class R>
__device__ inline void store_row(const R* row, int n, bool packed, T* out) {
  const int lane = static_cast<int>(threadIdx.x);
  if (packed) {
    constexpr int P = Pack<T>::kCount;
    for (int e = lane * P; e < n; e += kWarp * P) {
      Pack<T> pack;
#pragma unroll
      for (int i = 0; i < P; ++i) pack[i] = narrow<T>(row[e + i]);
      store_pack(out + e, pack);
    }
  } else {
    for (int e = lane; e < n; e += kWarp) out[e] = narrow<T>(row[e]);
  }
}

}  // namespace weft::cuda
