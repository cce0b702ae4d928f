#pragma once
#include "weft/core/kernels/sequences.h"
#include "weft/core/tensor.h"

namespace weft {

inline constexpr std::int64_t kConvTaps = 8;  ///< the largest number of taps

/// x, y (B, T, C); taps (K, C), f64 for f64 and else f32, that of the current token last. Tokens
/// are numbered through B * T.
using CausalConv1dFwdKernel = void(const Tensor& x, const Tensor& taps, const Tensor& cu_seqlens,
                                   bool silu, const Tensor& y);
struct CausalConv1dBwdIn {
  const Tensor &x, &taps, &cu_seqlens, &dy;
  bool silu;
  Device device() const { return x.device(); }
};
struct CausalConv1dBwdOut {
  const Tensor& dx;
  const Tensor& dtaps;  ///< (K, C); null if not needed
  const Tensor& dpre;   ///< scratch like dx, in the dtype of taps: gradient before the activation
  const Tensor& partials;  ///< scratch (conv_chunks(), K, C) like dtaps, null without it
};
using CausalConv1dBwdKernel = void(const CausalConv1dBwdIn& in, const CausalConv1dBwdOut& out);

/// The tap gradient is a sum over tokens, computed in this many chunks, which are added in order.
constexpr std::int64_t conv_chunks(std::int64_t tokens) {
  const std::int64_t chunks = (tokens + 63) / 64;
  return chunks < 1 ? 1 : chunks > 64 ? 64 : chunks;
}

inline Sequences conv_sequences(const Tensor& x, const Tensor& cu_seqlens) {
  if (!cu_seqlens.defined()) return {nullptr, x.dim(0), x.dim(1)};
  return {cu_seqlens.data<std::int32_t>(), cu_seqlens.numel() - 1, 0};
}

namespace cpu {
CausalConv1dFwdKernel causal_conv1d_fwd;
CausalConv1dBwdKernel causal_conv1d_bwd;
}  // namespace cpu
namespace cuda {
CausalConv1dFwdKernel causal_conv1d_fwd;
CausalConv1dBwdKernel causal_conv1d_bwd;
}  // namespace cuda

}  // namespace weft
