#include "weft/cuda/gated_delta_bwd.h"

namespace weft::cuda {
namespace {

// The last pass, for one head of one chunk. In the names of core/cpu/gated_delta_bwd.cpp, x is
// `updates` and dr `dupdates`; dx is the gradient of X before the solve.
template <class T, class R>
struct Gradients {
  const GatedDeltaSpec& s;
  const DeltaBackward<T, R>& b;
  DeltaBackwardShared<R>& m;
  DeltaRows<T, R> rows;
  const T* dy;
  const R *x, *dx, *inverse, *state, *dstate;
  R *dr, *dq, *dk;
  T* dv;
  std::int64_t each_row;  // of dq and dk, which have as many heads as v

  __device__ Gradients(const GatedDeltaSpec& spec, const DeltaBackward<T, R>& all,
                       DeltaBackwardShared<R>& shared, const DeltaChunk& at, std::int64_t slot,
                       std::int64_t head)
      : s(spec), b(all), m(shared), rows(all.rows(spec, at, head)) {
    const std::int64_t item = slot * s.value_heads + head, of_values = item * kDeltaSide * rows.V;
    dy = b.dy + (rows.v - b.v);
    dv = b.dv + (rows.v - b.v);
    x = b.x + of_values;
    dx = b.dx + of_values;
    dr = b.dr + of_values;
    inverse = b.inverse + item * kDeltaSide * kDeltaSide;
    state = b.states + item * s.state_size();
    dstate = b.dstates + item * s.state_size();
    each_row = s.value_heads * s.key_dim;
    dq = b.dq + at.first * each_row + head * s.key_dim;
    dk = b.dk + at.first * each_row + head * s.key_dim;
  }

  __device__ R out_grad(int i, int c) const {
    return i < rows.n ? widen(dy[i * rows.value_row + c]) : R(0);
  }
  // Adds up what the differences log[i] - log[j] got in m.second.
  __device__ void add_to_dlog() {
    __syncthreads();
    if (const int t = static_cast<int>(threadIdx.x); t < kDeltaSide) {
      R sum = 0;
      for (int j = 0; j < kDeltaSide; ++j) sum += m.second[t][j] - m.second[j][t];
      m.dlog[t] += sum;
    }
    __syncthreads();
  }

  // m.first: the gradient of q k^T.
  __device__ void scores() {
    DeltaTile<R> dp, qk;
    dp.template add<true, true>(
        m.stage, rows.V, [&](int i, int p) { return out_grad(i, p); },
        [&](int j, int p) { return x[j * rows.V + p]; });
    qk.template add<true, true>(
        m.stage, rows.K, [&](int i, int p) { return rows.query(i, p); },
        [&](int j, int p) { return rows.key(j, p); });
#pragma unroll
    for (int r = 0; r < kDeltaOwn; ++r)
#pragma unroll
      for (int c = 0; c < kDeltaOwn; ++c) {
        const int i = dp.row(r), j = dp.column(c);
        R f = 0;
        if (j <= i && i < rows.n) f = static_cast<R>(s.scale) * dp.v[r][c] * m.decay.between(i, j);
        m.first[i][j] = f;
        m.second[i][j] = f * qk.v[r][c];
      }
    add_to_dlog();
  }

  __device__ void queries() {
    for (int k0 = 0; k0 < rows.K; k0 += kDeltaSide) {
      DeltaTile<R> tile;
      tile.template add<true, true>(
          m.stage, rows.V, [&](int i, int p) { return out_grad(i, p); },
          [&](int j, int p) { return k0 + j < rows.K ? state[(k0 + j) * rows.V + p] : R(0); });
      tile.each(
          [&](int i, int, R& value) { value *= static_cast<R>(s.scale) * m.decay.from_start[i]; });
      tile.add_row_sums(m.dlog,
                        [&](int i, int j, R value) { return value * rows.query(i, k0 + j); });
      tile.template add<false, false>(
          m.stage, rows.n, [&](int i, int p) { return m.first[i][p]; },
          [&](int j, int p) { return rows.key(p, k0 + j); });
      tile.each([&](int i, int j, R& value) {
        if (i < rows.n && k0 + j < rows.K) dq[i * each_row + k0 + j] = value;
      });
    }
  }

  // dr: the gradient of beta (v - e^G k S).
  __device__ void values() {
    for (int c0 = 0; c0 < rows.V; c0 += kDeltaSide) {
      DeltaTile<R> tile;
      tile.template add<false, false>(
          m.stage, rows.n, [&](int i, int p) { return inverse[p * kDeltaSide + i]; },
          [&](int j, int p) { return c0 + j < rows.V ? dx[p * rows.V + c0 + j] : R(0); });
      tile.add_row_sums(m.dbeta,
                        [&](int i, int j, R value) { return value * rows.value(i, c0 + j); });
      tile.each([&](int i, int j, R& value) {
        if (c0 + j >= rows.V) return;
        dr[i * rows.V + c0 + j] = value;
        if (i < rows.n) dv[i * rows.value_row + c0 + j] = narrow<T>(m.decay.beta[i] * value);
      });
    }
    __syncthreads();
  }

  // m.second: the gradient of k k^T.
  __device__ void couplings() {
    DeltaTile<R> da, kk;
    da.template add<true, true>(
        m.stage, rows.V, [&](int i, int p) { return -dr[i * rows.V + p]; },
        [&](int j, int p) { return x[j * rows.V + p]; });
    kk.template add<true, true>(
        m.stage, rows.K, [&](int i, int p) { return rows.key(i, p); },
        [&](int j, int p) { return rows.key(j, p); });
    da.each([&](int i, int j, R& value) {
      value = j < i && i < rows.n ? value * m.decay.between(i, j) : R(0);
    });
#pragma unroll
    for (int r = 0; r < kDeltaOwn; ++r)
#pragma unroll
      for (int c = 0; c < kDeltaOwn; ++c) kk.v[r][c] *= da.v[r][c];
    kk.add_row_sums(m.dbeta, [](int, int, R value) { return value; });
    kk.each([&](int i, int j, R& value) { m.second[i][j] = m.decay.beta[i] * value; });
    add_to_dlog();
    da.each([&](int i, int j, R& value) { m.second[i][j] = m.decay.beta[i] * value; });
  }

  __device__ void keys() {
    for (int k0 = 0; k0 < rows.K; k0 += kDeltaSide) {
      DeltaTile<R> tile, stored;
      tile.template add<true, true>(
          m.stage, rows.V, [&](int i, int p) { return dr[i * rows.V + p]; },
          [&](int j, int p) { return k0 + j < rows.K ? state[(k0 + j) * rows.V + p] : R(0); });
      tile.each([&](int i, int, R& value) { value *= -m.decay.from_start[i]; });
      tile.add_row_sums(m.dbeta,
                        [&](int i, int j, R value) { return value * rows.key(i, k0 + j); });
      tile.each([&](int i, int, R& value) { value *= m.decay.beta[i]; });
      tile.add_row_sums(m.dlog, [&](int i, int j, R value) { return value * rows.key(i, k0 + j); });
      stored.template add<true, true>(
          m.stage, rows.V, [&](int i, int p) { return m.decay.to_end[i] * x[i * rows.V + p]; },
          [&](int j, int p) { return k0 + j < rows.K ? dstate[(k0 + j) * rows.V + p] : R(0); });
      stored.add_row_sums(m.left,
                          [&](int i, int j, R value) { return value * rows.key(i, k0 + j); });
#pragma unroll
      for (int r = 0; r < kDeltaOwn; ++r)
#pragma unroll
        for (int c = 0; c < kDeltaOwn; ++c) tile.v[r][c] += stored.v[r][c];
      const auto key = [&](int j, int p) { return rows.key(p, k0 + j); };
      tile.template add<false, false>(
          m.stage, rows.n, [&](int i, int p) { return m.first[p][i]; },
          [&](int j, int p) { return rows.query(p, k0 + j); });
      tile.template add<false, false>(
          m.stage, rows.n, [&](int i, int p) { return m.second[i][p] + m.second[p][i]; }, key);
      tile.each([&](int i, int j, R& value) {
        if (i < rows.n && k0 + j < rows.K) dk[i * each_row + k0 + j] = value;
      });
    }
  }

  // g gets what all later sums of it got; the sum of all also decays the state and what is stored.
  __device__ void gates(std::int64_t offset) {
    R kept = 0;
    for (int e = static_cast<int>(threadIdx.x); e < s.state_size(); e += kDeltaThreads)
      kept += dstate[e] * state[e];
    kept = block_reduce<kDeltaThreads>(kept, m.reduce, R(0), Sum{});
    if (const int t = static_cast<int>(threadIdx.x); t < rows.n) {
      double sum = static_cast<double>(m.decay.whole(rows.n) * kept);
      for (int j = rows.n - 1; j >= t; --j) sum += static_cast<double>(m.dlog[j]);
      for (int j = 0; j < t; ++j) sum += static_cast<double>(m.left[j]);
      const bool reset = rows.g[t * s.value_heads] <= static_cast<R>(kDeltaReset);
      b.dg[offset + t * s.value_heads] = reset ? R(0) : static_cast<R>(sum);
      b.dbeta[offset + t * s.value_heads] = m.dbeta[t];
    }
  }
};

template <class T, class R>
__global__ void gated_delta_grads_kernel(GatedDeltaSpec s, DeltaBackward<T, R> b) {
  const std::int64_t slot = blockIdx.x, head = blockIdx.y;
  const DeltaChunk at = s.chunk(slot);
  if (at.count <= 0) return;  // the whole block
  DeltaBackwardShared<R>& m = *dynamic_shared<DeltaBackwardShared<R>>();
  Gradients<T, R> grads(s, b, m, at, slot, head);
  if (const int t = static_cast<int>(threadIdx.x); t < kDeltaSide)
    m.dlog[t] = m.dbeta[t] = m.left[t] = 0;
  m.decay.load(grads.rows.g, grads.rows.beta, s.value_heads, grads.rows.n);
  grads.scores();
  grads.queries();
  grads.values();
  grads.couplings();
  grads.keys();
  __syncthreads();
  grads.gates(at.first * s.value_heads + head);
}

}  // namespace

template <class T, class R>
void delta_grads(const GatedDeltaSpec& s, const DeltaBackward<T, R>& b) {
  launch(gated_delta_grads_kernel<T, R>, grid_of(s.slots(), s.value_heads), kDeltaThreads,
         sizeof(DeltaBackwardShared<R>), s, b);
}
template void delta_grads(const GatedDeltaSpec&, const DeltaBackward<float, float>&);
template void delta_grads(const GatedDeltaSpec&, const DeltaBackward<bf16, float>&);
template void delta_grads(const GatedDeltaSpec&, const DeltaBackward<f16, float>&);
template void delta_grads(const GatedDeltaSpec&, const DeltaBackward<double, double>&);

}  // namespace weft::cuda
