#pragma once
// Tensors for the tests of views.
#include "weft/tests/support.h"

namespace weft::view_test {

// Elements 0, 1, 2, ... so that a value identifies its position.
inline Tensor counting(const Shape& shape, DType dtype = DType::f64) {
  return Tensor::arange(0, static_cast<double>(shape.numel()), 1, dtype).view(shape);
}

}  // namespace weft::view_test
