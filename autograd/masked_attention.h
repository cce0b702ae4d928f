#pragma once
#include "weft/core/kernels/attention.h"
#include "weft/core/tensor.h"

namespace weft::detail {

/// attention() with AttentionOptions::mask, composed of recorded ops. q, k, v and spec are checked.
/// Throws Error on a mask that is neither bool nor of q's dtype, that does not broadcast to
/// (B, H, T, S), or is on another device.
Tensor masked_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionSpec& spec, const Tensor& mask);

}  // namespace weft::detail
