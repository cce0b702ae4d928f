#pragma once
#include "weft/cuda/device.h"

namespace weft::cuda {

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
/// NaN wins.
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a != a || a > b ? a : b;
  }
};
struct Min {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a != a || a < b ? a : b;
  }
};

/// Combines the values of a warp's 32 lanes (or of each group of `Width` neighbours), always in the
/// same order; every lane receives the result. All 32 lanes must call it.
template <int Width = kWarp, class T, class Op>
__device__ inline T warp_reduce(T v, Op op) {
#if WEFT_CUDA_EMU
  // The same butterfly in one rendezvous of the lanes instead of one per step.
  emu::Engine::get().whole_warp(v, "warp_reduce", emu::Loc::current(), [op](T** lanes, unsigned) {
    for (int step = Width / 2; step > 0; step /= 2) {
      T next[kWarp];
      for (int i = 0; i < kWarp; ++i) next[i] = op(*lanes[i], *lanes[i ^ step]);
      for (int i = 0; i < kWarp; ++i) *lanes[i] = next[i];
    }
  });
#else
#pragma unroll
  for (int step = Width / 2; step > 0; step /= 2) v = op(v, __shfl_xor_sync(kAllLanes, v, step));
#endif
  return v;
}
template <class T>
__device__ inline T warp_sum(T v) {
  return warp_reduce(v, Sum{});
}
template <class T>
__device__ inline T warp_max(T v) {
  return warp_reduce(v, Max{});
}

/// Combines the values of all threads of a block of Threads (a multiple of 32, along x); every
/// thread receives the result. `shared` holds Threads / 32 values and can be reused at once.
template <int Threads, class T, class Op>
__device__ inline T block_reduce(T v, T* shared, T neutral, Op op) {
  static_assert(Threads % kWarp == 0 && Threads <= 1024, "whole warps");
  v = warp_reduce(v, op);
  if constexpr (Threads > kWarp) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (lane == 0) shared[threadIdx.x / kWarp] = v;
    __syncthreads();
    v = warp_reduce(lane < Threads / kWarp ? shared[lane] : neutral, op);
    __syncthreads();
  }
  return v;
}

}  // namespace weft::cuda
