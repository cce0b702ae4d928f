#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#include "weft/core/cpu/simd.h"
#include "weft/core/dtype.h"

namespace weft::cpu {

/// The numbers that the 256 codes of e4m3 or e5m2 stand for.
const float* fp8_values(DType t);

/// amax = the largest |x| of n numbers in f32 or bf16, NaN if there is one. Products in FP8 take no
/// other dtypes, for which nothing asks. Does nothing if amax is null.
template <class T>
void store_largest_magnitude(const T* x, std::int64_t n, float* amax) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>)
    if (amax) *amax = std::bit_cast<float>(simd().fp8.absmax<T>()(x, n));
}

}  // namespace weft::cpu
