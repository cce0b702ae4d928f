#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// y = x (B, T, H, D) with each pair (i, i + D / 2) rotated by the angle of its token's position,
/// or by the negative angle when `inverse`. cos, sin (max_T, D / 2): f32 or f64. positions: i32 (T)
/// or (B, T), or null for offset, offset + 1, ... Only the first `turned` heads of a token are
/// rotated; the others are copied. y may be x itself. A GPU leaves rows of y unchanged whose
/// position is not in [0, max_T).
using RopeKernel = void(const Tensor& x, const Tensor& cos, const Tensor& sin,
                        const Tensor& positions, std::int64_t offset, bool inverse,
                        std::int64_t turned, const Tensor& y);

namespace cpu {
RopeKernel rope;
}  // namespace cpu
namespace cuda {
RopeKernel rope;
}  // namespace cuda

}  // namespace weft
