#pragma once
#include "weft/core/dispatch.h"
#include "weft/core/kernels/scaled_activation.h"

namespace weft::detail {

/// y = the activation of x, and amax (rows) f32 = the largest |y| of each row, in one pass.
/// Contiguous tensors of at least one axis.
inline void activate_rows(const Tensor& x, ScaledKind kind, const Tensor& y, const Tensor& amax) {
  const auto matrix = [&](const Tensor& t) {
    const std::int64_t rows = amax.numel(), width = t.numel() / rows;
    return t.alias({rows, width}, {width, 1}, 0);
  };
  dispatch<cpu::scaled_activation_fwd, cuda::scaled_activation_fwd>(matrix(x), Tensor(), kind,
                                                                    matrix(y), amax);
}

}  // namespace weft::detail
