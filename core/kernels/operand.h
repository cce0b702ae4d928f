#pragma once
#include <type_traits>

#include "weft/core/tensor.h"

namespace weft {

/// The type of sums and statistics: f64 for f64, else f32.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

template <class T>
T* row_or_null(T* base, std::int64_t offset) {
  return base ? base + offset : nullptr;
}

/// i32 or i64 indices, read as i64, for code that learns their dtype at run time.
struct Indices {
  const std::int64_t* wide;
  const std::int32_t* narrow;

  explicit Indices(const Tensor& t)
      : wide(t.dtype() == DType::i64 ? t.data<std::int64_t>() : nullptr),
        narrow(t.dtype() == DType::i64 ? nullptr : t.data<std::int32_t>()) {}
  constexpr std::int64_t operator[](std::int64_t i) const { return wide ? wide[i] : narrow[i]; }
};

}  // namespace weft
