#pragma once
// FP8 codes on a GPU: the conversion instruction where there is one, else the arithmetic that the
// CPU uses. Both give the same codes.
#include "weft/core/kernels/fp8_scale.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/kernels/rounded_rows.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {

#include "weft/core/fp8_code.inc"

/// v rounded to a code of Q: e4m3 or e5m2.
template <class Q>
__device__ inline std::uint8_t fp8_code(float v) {
#if !WEFT_CUDA_EMU && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  // The instruction converts two numbers, saturates infinity too, and has its own NaN.
  std::uint16_t pair;
  if constexpr (std::is_same_v<Q, e4m3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(pair) : "f"(0.0f), "f"(v));
    const auto sign = static_cast<std::uint8_t>(fp8_bits<std::uint32_t>(v) >> 24 & 0x80u);
    return v != v ? static_cast<std::uint8_t>(sign | 0x7fu) : static_cast<std::uint8_t>(pair);
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;\n" : "=h"(pair) : "f"(0.0f), "f"(v));
    const std::uint32_t u = fp8_bits<std::uint32_t>(v), size = u & 0x7fffffffu;
    const auto sign = static_cast<std::uint8_t>(u >> 24 & 0x80u);
    if (size >= 0x7f800000u)
      return static_cast<std::uint8_t>(sign | (size > 0x7f800000u ? 0x7eu : 0x7cu));
    return static_cast<std::uint8_t>(pair);
  }
#else
  if constexpr (std::is_same_v<Q, e4m3>)
    return e4m3_code(v);
  else
    return e5m2_code(v);
#endif
}

/// |x|, for the largest magnitudes from which scales come.
template <class R>
__device__ inline R absolute(R x) {
  return x < R(0) ? -x : x;
}
/// Its bits: of positive numbers, the larger one has the larger bits; NaN is above infinity.
__device__ inline int magnitude(float x) {
  const int bits = fp8_bits<int>(x) & 0x7fffffff;
  return bits > 0x7f800000 ? 0x7fc00000 : bits;
}

/// A RoundedRows in a kernel.
struct RowsOut {
  float *amax, *inverse;
  const float* scale;
  std::uint8_t* codes;
  Fp8Scaling how;
  explicit RowsOut(const RoundedRows& to)
      : amax(data_or_null<float>(to.amax)),
        inverse(data_or_null<float>(to.inverse)),
        scale(data_or_null<float>(to.scale)),
        codes(to.codes.defined() ? static_cast<std::uint8_t*>(to.codes.raw()) : nullptr),
        how(to.how) {}
};

/// Codes of row r, which `Group` adjacent threads have just written to y, each in packs of V that
/// are Group packs apart. They read it again, from the cache, so that the loop before needs no more
/// registers. All threads of the block call it; `live`: whether the group has a row.
template <int Group, int V, class T>
__device__ inline void store_codes(const RowsOut& to, const T* y, std::int64_t r,
                                   std::int64_t columns, bool live) {
  if constexpr (!std::is_same_v<T, float> && !std::is_same_v<T, bf16>) return;  // nothing asks
  if (!to.codes) return;
  if (to.scale) {  // each thread its own numbers
    const float scale = *to.scale;
    for (std::int64_t i = static_cast<int>(threadIdx.x) % Group * V; live && i < columns;
         i += Group * V) {
      const auto v = load_pack<T, V>(y + i);
      Pack<std::uint8_t, V> codes;
#pragma unroll
      for (int j = 0; j < V; ++j)
        codes[j] = fp8_code<e4m3>(static_cast<float>(widen(v[j])) * scale);
      store_pack(to.codes + r * columns + i, codes);
    }
    return;
  }
  constexpr int kLanes = Group < kWarp ? Group : kWarp, kTeams = Group / kLanes;
  if constexpr (Group > kWarp)
    __syncthreads();
  else
    __syncwarp();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t blocks = fp8_blocks(columns);
  for (std::int64_t b = static_cast<int>(threadIdx.x) % Group / kLanes; b < blocks; b += kTeams) {
    const std::int64_t begin = b * kFp8Block + lane;
    const std::int64_t end = (b + 1) * kFp8Block < columns ? (b + 1) * kFp8Block : columns;
    int most = 0;
    for (std::int64_t i = begin; live && i < end; i += kLanes)
      most = Max{}(most, magnitude(static_cast<float>(widen(y[i]))));
    most = warp_reduce<kLanes>(most, Max{});
    if (!live) continue;
    const float scale = fp8_scale_of(fp8_bits<float>(most), fp8_largest(DType::e4m3), to.how);
    for (std::int64_t i = begin; i < end; i += kLanes)
      to.codes[r * columns + i] = fp8_code<e4m3>(static_cast<float>(widen(y[i])) * scale);
    if (lane == 0) to.inverse[r * blocks + b] = 1.0f / scale;
  }
}
/// The codes of y (R, C) by a kernel of their own, for rows that another kernel does not hold.
inline void store_codes_after(const RoundedRows& to, const Tensor& y) {
  if (!to.codes.defined()) return;
  const std::int64_t rows = to.codes.dim(0), columns = to.codes.dim(1);
  const Tensor matrix = y.alias({rows, columns}, {columns, 1}, 0);
  if (to.scale.defined())
    quantize(matrix, {.each = rows}, to.scale, to.codes, Tensor());
  else
    quantize_tiles(matrix, {.each = rows}, {1, kFp8Block}, to.how, to.codes, to.inverse);
}

}  // namespace weft::cuda
