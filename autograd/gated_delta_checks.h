#pragma once
#include "weft/autograd/cu_seqlens.h"
#include "weft/autograd/gated_delta.h"
#include "weft/autograd/operand.h"
#include "weft/core/error.h"

namespace weft::detail {

inline std::int64_t delta_sequences(const Tensor& q, const Tensor& cu_seqlens) {
  return cu_seqlens.defined() ? cu_seqlens.dim(0) - 1 : q.dim(0);
}
inline Shape delta_state_shape(const Tensor& q, const Tensor& v, const Tensor& cu_seqlens) {
  return {delta_sequences(q, cu_seqlens), v.dim(2), q.dim(3), v.dim(3)};
}

/// Sets cu_seqlens as the kernels read it, or null.
/// Throws Error on operands of gated_delta() that do not match.
void check_gated_delta(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& g, const Tensor& beta, const GatedDeltaOptions& options,
                       Tensor& cu_seqlens);

}  // namespace weft::detail
