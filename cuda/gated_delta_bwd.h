#pragma once
#include "weft/cuda/gated_delta_tile.h"

namespace weft::cuda {

template <class R>
struct DeltaBackwardShared {
  DeltaStage<R> stage;
  DeltaDecays<R> decay;
  R dlog[kDeltaSide], dbeta[kDeltaSide], left[kDeltaSide], reduce[kDeltaThreads / kWarp];
  DeltaSquare<R> first, second;
};

/// Operands and results, and the scratch of all heads of all chunks.
template <class T, class R>
struct DeltaBackward {
  const T *q, *k, *v, *dy;
  const R *g, *beta, *states, *dfinal;
  R *w, *x, *dx, *dr, *inverse, *dstates;
  R *dq, *dk, *dg, *dbeta, *dstate;
  T* dv;

  __device__ DeltaRows<T, R> rows(const GatedDeltaSpec& s, const DeltaChunk& at,
                                  std::int64_t head) const {
    return DeltaRows<T, R>(s, at, head, q, k, v, g, beta);
  }
};

/// The last pass, in gated_delta_grads.cu: all gradients but that of the state, for all chunks at
/// once.
template <class T, class R>
void delta_grads(const GatedDeltaSpec& s, const DeltaBackward<T, R>& b);

}  // namespace weft::cuda
