#pragma once
#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/elementwise.h"

namespace weft::cpu {

/// The vectorised row function of an op for contiguous f32, bf16 and f16; null for an op that the
/// compiler vectorises well enough.
template <class T>
typename RowKernels<T>::Map* row_kernel(UnaryOp op) {
  const RowKernels<T>& k = simd().of<T>();
  switch (op) {
    case UnaryOp::exp:
      return k.exp;
    case UnaryOp::log:
      return k.log;
    case UnaryOp::tanh:
      return k.tanh;
    case UnaryOp::sigmoid:
      return k.sigmoid;
    case UnaryOp::gelu_tanh:
      return k.gelu_tanh;
    case UnaryOp::gelu_erf:
      return k.gelu_erf;
    case UnaryOp::silu:
      return k.silu;
    default:
      return nullptr;
  }
}

template <class T>
typename RowKernels<T>::MapBwd* row_kernel(BinaryOp op) {
  const RowKernels<T>& k = simd().of<T>();
  switch (op) {
    case BinaryOp::tanh_bwd:
      return k.tanh_bwd;
    case BinaryOp::sigmoid_bwd:
      return k.sigmoid_bwd;
    case BinaryOp::gelu_tanh_bwd:
      return k.gelu_tanh_bwd;
    case BinaryOp::gelu_erf_bwd:
      return k.gelu_erf_bwd;
    case BinaryOp::silu_bwd:
      return k.silu_bwd;
    default:
      return nullptr;
  }
}

}  // namespace weft::cpu
