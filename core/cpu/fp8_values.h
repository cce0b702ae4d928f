#pragma once
#include <bit>
#include <cstdint>

#include "weft/core/cpu/simd.h"
#include "weft/core/dtype.h"

namespace weft::cpu {

/// The numbers that the 256 codes of e4m3 or e5m2 stand for.
const float* fp8_values(DType t);

/// The largest |x| of n numbers in f32 or bf16; NaN if there is one.
template <class T>
float largest_magnitude(const T* x, std::int64_t n) {
  return std::bit_cast<float>(simd().fp8.absmax<T>()(x, n));
}

}  // namespace weft::cpu
