#pragma once
#include <type_traits>

#include "weft/core/tensor.h"

namespace weft {

/// The type of sums and statistics: f64 for f64, else f32.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
T* data_or_null(const Tensor& t) {
  return t ? t.data<T>() : nullptr;
}

template <class T>
T* row_or_null(T* base, std::int64_t offset) {
  return base ? base + offset : nullptr;
}

}  // namespace weft
