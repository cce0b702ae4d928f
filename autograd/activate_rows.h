#pragma once
#include "weft/core/dispatch.h"
#include "weft/core/kernels/scaled_activation.h"

namespace weft::detail {

/// y = the activation of x, and what its rows are rounded to, in one pass. Contiguous tensors of at
/// least one axis.
inline void activate_rows(const Tensor& x, ScaledKind kind, const Tensor& y,
                          const RoundedRows& rounded) {
  const std::int64_t rows = y.numel() / y.dim(-1);
  const auto matrix = [&](const Tensor& t) {
    const std::int64_t width = t.numel() / rows;
    return t.alias({rows, width}, {width, 1}, 0);
  };
  dispatch<cpu::scaled_activation_fwd, cuda::scaled_activation_fwd>(matrix(x), Tensor(), kind,
                                                                    matrix(y), rounded);
}

}  // namespace weft::detail
