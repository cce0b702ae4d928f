#pragma once
#include <cstdint>
#include <type_traits>

#include "weft/core/dtype.h"
#include "weft/core/kernels/rounded_rows.h"

namespace weft::cpu {

/// The numbers that the 256 codes of e4m3 or e5m2 stand for.
const float* fp8_values(DType t);

/// Writes a RoundedRows row by row, while y's row is in the cache.
class RowRounder {
 public:
  RowRounder(const RoundedRows& to, std::int64_t columns);
  /// y: row r, just written. Products in FP8 take f32 and bf16; for others nothing asks.
  template <class T>
  void operator()(const T* y, std::int64_t r) const {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>)
      if (amax_ || codes_) write(y, r);
  }

 private:
  template <class T>
  void write(const T* y, std::int64_t r) const;
  const std::int64_t columns_;
  float *const amax_, *const inverse_;
  const float* const scale_;
  std::uint8_t* const codes_;
  const Fp8Scaling how_;
};

}  // namespace weft::cpu
