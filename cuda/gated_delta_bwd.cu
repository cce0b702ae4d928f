#include "weft/core/kernels/gated_delta.h"
#include "weft/cuda/gated_delta_bwd.h"

// The passes of the forward kernels in reverse: recompute the updates and start their gradient from
// that of the outputs; the gradient of the state from the last chunk to the first; all other
// gradients, for all chunks at once.

namespace weft::cuda {
namespace {

// X = U - W S and, as the first part of its gradient, P^T dy.
template <class T, class R>
__global__ void gated_delta_updates_kernel(GatedDeltaSpec s, DeltaBackward<T, R> b) {
  const std::int64_t slot = blockIdx.x, head = blockIdx.y, item = slot * s.value_heads + head;
  const DeltaChunk at = s.chunk(slot);
  if (at.count <= 0) return;  // the whole block
  DeltaBackwardShared<R>& m = *dynamic_shared<DeltaBackwardShared<R>>();
  const DeltaRows<T, R> rows = b.rows(s, at, head);
  const T* dy = b.dy + (rows.v - b.v);
  const R *w = b.w + item * kDeltaSide * rows.K, *state = b.states + item * s.state_size();
  R *x = b.x + item * kDeltaSide * rows.V, *dx = b.dx + item * kDeltaSide * rows.V;
  m.decay.load(rows.g, rows.beta, s.value_heads, rows.n);
  delta_output_weights(rows, m.decay, static_cast<R>(s.scale), m.stage, m.first);
  for (int c0 = 0; c0 < rows.V; c0 += kDeltaSide) {
    DeltaTile<R> read, grad;
    read.template add<true, false>(
        m.stage, rows.K, [&](int i, int p) { return w[i * rows.K + p]; },
        [&](int j, int p) { return c0 + j < rows.V ? state[p * rows.V + c0 + j] : R(0); });
    grad.template add<false, false>(
        m.stage, rows.n, [&](int i, int p) { return m.first[p][i]; },
        [&](int j, int p) {
          return c0 + j < rows.V ? widen(dy[p * rows.value_row + c0 + j]) : R(0);
        });
    read.each([&](int i, int j, R& value) {
      if (c0 + j < rows.V) x[i * rows.V + c0 + j] -= value;
    });
    grad.each([&](int i, int j, R& value) {
      if (c0 + j < rows.V) dx[i * rows.V + c0 + j] = value;
    });
  }
}

// dX += (k under the decays to the end) dS, then
// dS = e^(all of g) dS + scale (e^G q)^T dy - W^T dX; the dS after each chunk is kept.
template <class T, class R>
__global__ void gated_delta_dstates_kernel(GatedDeltaSpec s, DeltaBackward<T, R> b) {
  const std::int64_t sequence = blockIdx.x / s.value_heads, head = blockIdx.x % s.value_heads;
  const int column0 = static_cast<int>(blockIdx.y) * kDeltaSide, V = static_cast<int>(s.value_dim);
  const std::int64_t first = s.first_slot(sequence), chunks = s.chunks(sequence);
  DeltaBackwardShared<R>& m = *dynamic_shared<DeltaBackwardShared<R>>();
  // After chunk c; c = -1: before the first.
  const auto grad_at = [&](std::int64_t c) {
    return c >= 0 ? b.dstates + ((first + c) * s.value_heads + head) * s.state_size()
                  : b.dstate + blockIdx.x * s.state_size();
  };
  for (int e = static_cast<int>(threadIdx.x); e < s.key_dim * kDeltaSide; e += kDeltaThreads) {
    const int j = column0 + e % kDeltaSide;
    const std::int64_t to = std::int64_t{e / kDeltaSide} * V + j;
    if (j < V)
      grad_at(chunks - 1)[to] = b.dfinal ? b.dfinal[blockIdx.x * s.state_size() + to] : R(0);
  }
  __syncthreads();
  for (std::int64_t c = chunks - 1; c >= 0; --c) {
    const DeltaRows<T, R> rows = b.rows(s, s.chunk(first + c), head);
    const std::int64_t item = (first + c) * s.value_heads + head;
    const T* dy = b.dy + (rows.v - b.v);
    const R *behind = grad_at(c), *w = b.w + item * kDeltaSide * rows.K;
    R *before = grad_at(c - 1), *dx = b.dx + item * kDeltaSide * V;
    m.decay.load(rows.g, rows.beta, s.value_heads, rows.n);
    const auto grad = [&](int j, int p) {
      return column0 + j < V ? behind[std::int64_t{p} * V + column0 + j] : R(0);
    };
    DeltaTile<R> tile;
    tile.template add<true, false>(
        m.stage, rows.K, [&](int i, int p) { return m.decay.to_end[i] * rows.key(i, p); }, grad);
    tile.each([&](int i, int j, R& value) {
      R all = 0;
      if (column0 + j < V) all = dx[i * V + column0 + j] += value;
      m.first[i][j] = all;
    });
    const R scale = static_cast<R>(s.scale);
    for (int k0 = 0; k0 < rows.K; k0 += kDeltaSide) {
      DeltaTile<R> next;
      next.template add<false, false>(
          m.stage, rows.n,
          [&](int i, int p) { return scale * m.decay.from_start[p] * rows.query(p, k0 + i); },
          [&](int j, int p) {
            return column0 + j < V ? widen(dy[p * rows.value_row + column0 + j]) : R(0);
          });
      next.template add<false, false>(
          m.stage, rows.n,
          [&](int i, int p) { return k0 + i < rows.K ? -w[p * rows.K + k0 + i] : R(0); },
          [&](int j, int p) { return m.first[p][j]; });
      next.each([&](int i, int j, R& value) {
        if (k0 + i < rows.K && column0 + j < V)
          before[std::int64_t{k0 + i} * V + column0 + j] =
              m.decay.whole(rows.n) * grad(j, k0 + i) + value;
      });
    }
    __syncthreads();
  }
}

}  // namespace

void gated_delta_bwd(const GatedDeltaBwdIn& in, const GatedDeltaSpec& s,
                     const GatedDeltaBwdOut& out) {
  const std::int64_t items = s.slots() * s.value_heads, values = items * kDeltaChunk * s.value_dim;
  const dim3 chunks = grid_of(s.slots(), s.value_heads);
  dispatch_floating(in.q.dtype(), [&]<class T>() {
    using R = Real<T>;
    DeltaBackward<T, R> b{.q = in.q.data<T>(),
                          .k = in.k.data<T>(),
                          .v = in.v.data<T>(),
                          .dy = in.dy.data<T>(),
                          .g = in.g.data<R>(),
                          .beta = in.beta.data<R>(),
                          .states = in.states.data<R>(),
                          .dfinal = data_or_null<R>(in.dfinal),
                          .w = out.scratch.data<R>(),
                          .x = nullptr,
                          .dx = nullptr,
                          .dr = nullptr,
                          .inverse = nullptr,
                          .dstates = nullptr,
                          .dq = out.dq.data<R>(),
                          .dk = out.dk.data<R>(),
                          .dg = out.dg.data<R>(),
                          .dbeta = out.dbeta.data<R>(),
                          .dstate = out.dstate.data<R>(),
                          .dv = out.dv.data<T>()};
    b.x = b.w + items * kDeltaChunk * s.key_dim;
    b.dx = b.x + values;
    b.dr = b.dx + values;
    b.inverse = b.dr + values;
    b.dstates = b.inverse + items * kDeltaChunk * kDeltaChunk;
    delta_prepare<T, R>(s, b.k, b.v, b.g, b.beta, b.w, b.x, b.inverse);
    launch(gated_delta_updates_kernel<T, R>, chunks, kDeltaThreads, sizeof(DeltaBackwardShared<R>),
           s, b);
    launch(gated_delta_dstates_kernel<T, R>,
           grid_of(s.all.count * s.value_heads, blocks_for(s.value_dim, kDeltaSide)), kDeltaThreads,
           sizeof(DeltaBackwardShared<R>), s, b);
    delta_grads(s, b);
  });
}

}  // namespace weft::cuda
