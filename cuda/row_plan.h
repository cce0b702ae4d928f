#pragma once
// How threads share a row that fits in their registers, and sums over the threads of a row.
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {

/// `Group` adjacent threads share a row, in accesses of V elements; each thread makes at most
/// `Held` accesses and keeps their elements. Held 0: any number, read again in every pass.
template <int Group, int V, int Held>
struct RowPlan {
  static constexpr int kThreads = Group <= 128 ? 128 : Group;  // per block
  static constexpr int kGroups = kThreads / Group;             // rows processed by a block at a
                                                               // time
  static constexpr int kKept = Held > 0 ? Held : 1;

  /// Calls f(k, i) for each access of this thread, which starts at element i of the row.
  template <class F>
  static __device__ void each(std::int64_t C, bool live, F f) {
    const int lane = static_cast<int>(threadIdx.x) % Group;
    if constexpr (Held > 0) {
#pragma unroll
      for (int k = 0; k < Held; ++k)
        if (const int i = (k * Group + lane) * V; live && i < C) f(k, i);
    } else {
      for (std::int64_t i = lane * V; live && i < C; i += Group * V) f(0, i);
    }
  }
};

/// Calls f(plan) with a plan for rows of C elements; `packs`: whether they can be accessed 16 bytes
/// at a time. A thread keeps kHeld packs (two for bf16 in a large block, for lack of registers), or
/// a few times as many single elements. Rows of f64, which check gradients, have one plan for all.
template <class T, int kHeld, class F>
void with_row_plan(std::int64_t C, bool packs, F f) {
  if constexpr (sizeof(T) == 8) {
    f(RowPlan<128, 1, 0>{});
  } else {
    constexpr int V = 16 / static_cast<int>(sizeof(T)), kLarge = sizeof(T) == 2 ? 2 : kHeld;
    constexpr int kScalars = kHeld * 4;
    if (packs) {
      if (C <= 8 * V * kHeld) return f(RowPlan<8, V, kHeld>{});
      if (C <= 32 * V * kHeld) return f(RowPlan<32, V, kHeld>{});
      if (C <= 128 * V * kHeld) return f(RowPlan<128, V, kHeld>{});
      if (C <= 512 * V * kLarge) return f(RowPlan<512, V, kLarge>{});
      return f(RowPlan<512, V, 0>{});
    }
    if (C <= 32 * kScalars) return f(RowPlan<32, 1, kScalars>{});
    f(RowPlan<512, 1, 0>{});
  }
}

/// The sum over the group, for every thread of it. `shared` can be reused at once.
template <int Group, class R>
__device__ inline R group_sum(R v, R* shared) {
  if constexpr (Group <= kWarp)
    return warp_reduce<Group>(v, Sum{});
  else
    return block_reduce<Group>(v, shared, R(0), Sum{});
}

/// The largest over the group, for every thread of it; NaN if there is one. `shared` can be reused
/// at once.
template <int Group, class R>
__device__ inline R group_max(R v, R* shared) {
  if constexpr (Group <= kWarp)
    return warp_reduce<Group>(v, Max{});
  else
    return block_reduce<Group>(v, shared, R(0), Max{});
}

/// Two sums at once, for every thread. `shared` can be reused at once.
template <int Group, class R>
__device__ inline void group_sums(R& a, R& b, R (*shared)[2]) {
  constexpr int kWidth = Group < kWarp ? Group : kWarp;
  a = warp_reduce<kWidth>(a, Sum{});
  b = warp_reduce<kWidth>(b, Sum{});
  if constexpr (Group > kWarp) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (lane == 0) {
      shared[threadIdx.x / kWarp][0] = a;
      shared[threadIdx.x / kWarp][1] = b;
    }
    __syncthreads();
    const bool mine = lane < Group / kWarp;
    a = warp_sum(mine ? shared[lane][0] : R(0));
    b = warp_sum(mine ? shared[lane][1] : R(0));
    __syncthreads();
  }
}

/// The pack at p, or `absent` in every element if p is null.
template <class T, int V>
__device__ inline Pack<T, V> pack_or(const T* p, std::int64_t i, float absent) {
  if (p) return load_pack<T, V>(p + i);
  Pack<T, V> all;
#pragma unroll
  for (int j = 0; j < V; ++j) all[j] = T(absent);
  return all;
}

}  // namespace weft::cuda
