#pragma once
#include <algorithm>

#include "weft/core/kernels/rounded_rows.h"

namespace weft {

// layer_norm and rms_norm of R rows of C elements, row-contiguous. rms_norm has no bias and no
// mean. "real" is f64 for f64 tensors, else f32.

struct NormFwdIn {
  const Tensor& x;              ///< (R, C)
  const Tensor& residual;       ///< (R, C), or null
  const Tensor &weight, &bias;  ///< (C), or null
  double eps;
  bool zero_centered = false;  ///< rms_norm: the gain is 1 + weight
  Device device() const { return x.device(); }
};
struct NormFwdOut {
  const Tensor& sum;          ///< (R, C) = x + residual, which is then normalised; null without one
  const Tensor& y;            ///< (R, C)
  const Tensor &mean, &rstd;  ///< (R), real
  const RoundedRows& rounded;  ///< of y
};
struct NormBwdIn {
  const Tensor& x;  ///< what the forward normalised: x, or sum with a residual
  const Tensor &dy, &weight, &mean, &rstd;
  const Tensor& dsum;          ///< (R, C), added to dx; or null
  bool zero_centered = false;  ///< as in the forward
  Device device() const { return x.device(); }
};
struct NormBwdOut {
  const Tensor& dx;               ///< (R, C)
  const Tensor &dweight, &dbias;  ///< (C); null if not needed
  const Tensor& partials;         ///< scratch (1 or 2 sums, norm_chunks(R), C), real; null for none
  /// The sum is added to what dweight or dbias holds. Each may be f32 for bf16.
  bool adds_weight = false, adds_bias = false;
};
using NormFwdKernel = void(const NormFwdIn& in, const NormFwdOut& out);
using NormBwdKernel = void(const NormBwdIn& in, const NormBwdOut& out);

/// What rms_norm adds to each weight: 1, or -0, which changes no bit (0 would turn a weight of -0
/// into 0). So one kernel without a branch computes both gains. Without a weight the gain is 1.
template <class R>
R weight_offset(const Tensor& weight, bool zero_centered) {
  return zero_centered && weight.defined() ? R(1) : -R(0);
}

/// dweight and dbias are sums over rows. The rows are split into this many chunks; each chunk is
/// summed separately, then the chunks are added in order. The number is enough for many threads and
/// does not depend on theirs. On a GPU a chunk is a thread block: three for each of 132
/// multiprocessors.
inline std::int64_t norm_chunks(std::int64_t rows, bool gpu = false) {
  if (gpu) return std::clamp<std::int64_t>((rows + 7) / 8, 1, 396);
  return std::clamp<std::int64_t>((rows + 15) / 16, 1, 64);
}

namespace cpu {
NormFwdKernel layer_norm_fwd, rms_norm_fwd;
NormBwdKernel layer_norm_bwd, rms_norm_bwd;
}  // namespace cpu
namespace cuda {
NormFwdKernel layer_norm_fwd, rms_norm_fwd;
NormBwdKernel layer_norm_bwd, rms_norm_bwd;
}  // namespace cuda

}  // namespace weft
