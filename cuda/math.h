#pragma once
// Elementwise arithmetic. f32 uses the GPU's own instructions where they exist; f64 is as exact as
// on the CPU.
#include <cmath>

#include "weft/cuda/ptx.h"

namespace weft::cuda {

/// x in the compute type of T.
template <class T>
__device__ inline Compute<T> widen(T x) {
  if constexpr (std::is_same_v<T, f16>)
    return widen_f16(x);
  else
    return static_cast<Compute<T>>(x);
}
/// Rounded to the nearest T, ties to even. In 16 bits a NaN becomes 0x7fff; as bf16 that is also
/// what the upper half of every NaN is that a GPU's arithmetic produces.
template <class T, class C>
__device__ inline T narrow(C x) {
  if constexpr (kIsHalf<T>)
    return round_half<T>(x);
  else
    return T(x);
}

__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return ::exp(x); }
inline constexpr float kLog2E = 1.4426950408889634f;
/// For sums and normalised exponentials, x <= 0: off by a few f32 steps where the result is small,
/// and 0 where it would be subnormal.
__device__ inline float fast_exp(float x) { return exp2_approx(x * kLog2E); }
__device__ inline double fast_exp(double x) { return ::exp(x); }
/// The larger number; NaN only if both are, so that one instruction suffices.
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return ::fmax(a, b); }
__device__ inline float log_of(float x) { return logf(x); }
__device__ inline double log_of(double x) { return ::log(x); }
__device__ inline float sqrt_of(float x) { return sqrtf(x); }
__device__ inline double sqrt_of(double x) { return ::sqrt(x); }
__device__ inline float tanh_of(float x) { return tanhf(x); }
__device__ inline double tanh_of(double x) { return ::tanh(x); }
__device__ inline float erf_of(float x) { return erff(x); }
__device__ inline double erf_of(double x) { return ::erf(x); }
__device__ inline float pow_of(float x, float y) { return powf(x, y); }
__device__ inline double pow_of(double x, double y) { return ::pow(x, y); }
__device__ inline float rsqrt_of(float x) { return 1.0f / sqrtf(x); }
__device__ inline double rsqrt_of(double x) { return 1.0 / ::sqrt(x); }

/// 1 / (1 + exp(-x)); in f32, accurate to a few ulp for x around 0, and 0 for very negative x.
__device__ inline float fast_sigmoid(float x) { return __fdividef(1.0f, 1.0f + fast_exp(-x)); }
__device__ inline double fast_sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }

}  // namespace weft::cuda
