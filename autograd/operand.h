#pragma once
#include "weft/core/error.h"
#include "weft/core/tensor.h"

namespace weft::detail {

/// Throws Error "op: x must be a tensor, got a null handle".
inline void check_tensor(const char* op, const char* label, const Tensor& t) {
  check(t.defined(), "{}: {} must be a tensor, got a null handle", op, label);
}

}  // namespace weft::detail
