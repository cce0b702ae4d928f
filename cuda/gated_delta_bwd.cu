#include "weft/core/kernels/gated_delta.h"
#include "weft/cuda/gated_delta_tile.h"

// The passes of the forward kernels, mirrored: the updates once more and what reaches them from the
// outputs; the gradient of the state from the last chunk to the first; all other gradients, for all
// chunks at once.

namespace weft::cuda {
namespace {

template <class R>
struct Shared {
  DeltaStage<R> stage;
  DeltaDecays<R> decay;
  R dlog[kDeltaSide], dbeta[kDeltaSide], left[kDeltaSide], reduce[kDeltaThreads / kWarp];
  DeltaSquare<R> first, second;
};

// Scratch of all heads of all chunks, and the operands.
template <class T, class R>
struct Backward {
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

// X = U - W S and, as the first part of its gradient, P^T dy.
template <class T, class R>
__global__ void gated_delta_updates_kernel(GatedDeltaSpec s, Backward<T, R> b) {
  const std::int64_t slot = blockIdx.x, head = blockIdx.y, item = slot * s.value_heads + head;
  const DeltaChunk at = s.chunk(slot);
  if (at.count <= 0) return;  // the whole block
  Shared<R>& m = *dynamic_shared<Shared<R>>();
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
          return c0 + j < rows.V ? static_cast<R>(dy[p * rows.value_row + c0 + j]) : R(0);
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
// dS = e^(all of g) dS + scale (e^G q)^T dy - W^T dX; the dS behind each chunk is kept.
template <class T, class R>
__global__ void gated_delta_dstates_kernel(GatedDeltaSpec s, Backward<T, R> b) {
  const std::int64_t sequence = blockIdx.x / s.value_heads, head = blockIdx.x % s.value_heads;
  const int column0 = static_cast<int>(blockIdx.y) * kDeltaSide, V = static_cast<int>(s.value_dim);
  const std::int64_t first = s.first_slot(sequence), chunks = s.chunks(sequence);
  Shared<R>& m = *dynamic_shared<Shared<R>>();
  // Behind chunk c; c = -1 is before the first.
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
            return column0 + j < V ? static_cast<R>(dy[p * rows.value_row + column0 + j]) : R(0);
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

// What remains, for one head of one chunk. Matrices are named as in core/cpu/gated_delta_bwd.cpp.
template <class T, class R>
struct Gradients {
  const GatedDeltaSpec& s;
  const Backward<T, R>& b;
  Shared<R>& m;
  DeltaRows<T, R> rows;
  const T* dy;
  const R *x, *dx, *inverse, *state, *dstate;
  R *dr, *dq, *dk;
  T* dv;
  std::int64_t each_row;  // of dq and dk, which have as many heads as v

  __device__ Gradients(const GatedDeltaSpec& spec, const Backward<T, R>& all, Shared<R>& shared,
                       const DeltaChunk& at, std::int64_t slot, std::int64_t head)
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
    return i < rows.n ? static_cast<R>(dy[i * rows.value_row + c]) : R(0);
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
        if (i < rows.n) dv[i * rows.value_row + c0 + j] = T(m.decay.beta[i] * value);
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
      b.dg[offset + t * s.value_heads] = static_cast<R>(sum);
      b.dbeta[offset + t * s.value_heads] = m.dbeta[t];
    }
  }
};

template <class T, class R>
__global__ void gated_delta_grads_kernel(GatedDeltaSpec s, Backward<T, R> b) {
  const std::int64_t slot = blockIdx.x, head = blockIdx.y;
  const DeltaChunk at = s.chunk(slot);
  if (at.count <= 0) return;  // the whole block
  Shared<R>& m = *dynamic_shared<Shared<R>>();
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

void gated_delta_bwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                     const Tensor& beta, const Tensor& states, const GatedDeltaSpec& s,
                     const Tensor& dy, const Tensor& dfinal, const Tensor& scratch,
                     const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dg,
                     const Tensor& dbeta, const Tensor& dstate) {
  const std::int64_t items = s.slots() * s.value_heads, values = items * kDeltaChunk * s.value_dim;
  const dim3 chunks = grid_of(s.slots(), s.value_heads);
  dispatch_floating(q.dtype(), [&]<class T>() {
    using R = Real<T>;
    Backward<T, R> b{.q = q.data<T>(),
                     .k = k.data<T>(),
                     .v = v.data<T>(),
                     .dy = dy.data<T>(),
                     .g = g.data<R>(),
                     .beta = beta.data<R>(),
                     .states = states.data<R>(),
                     .dfinal = data_or_null<R>(dfinal),
                     .w = scratch.data<R>(),
                     .x = nullptr,
                     .dx = nullptr,
                     .dr = nullptr,
                     .inverse = nullptr,
                     .dstates = nullptr,
                     .dq = dq.data<R>(),
                     .dk = dk.data<R>(),
                     .dg = dg.data<R>(),
                     .dbeta = dbeta.data<R>(),
                     .dstate = dstate.data<R>(),
                     .dv = dv.data<T>()};
    b.x = b.w + items * kDeltaChunk * s.key_dim;
    b.dx = b.x + values;
    b.dr = b.dx + values;
    b.inverse = b.dr + values;
    b.dstates = b.inverse + items * kDeltaChunk * kDeltaChunk;
    delta_prepare<T, R>(s, k, v, g, beta, b.w, b.x, b.inverse);
    launch(gated_delta_updates_kernel<T, R>, chunks, kDeltaThreads, sizeof(Shared<R>), s, b);
    launch(gated_delta_dstates_kernel<T, R>,
           grid_of(s.all.count * s.value_heads, blocks_for(s.value_dim, kDeltaSide)), kDeltaThreads,
           sizeof(Shared<R>), s, b);
    launch(gated_delta_grads_kernel<T, R>, chunks, kDeltaThreads, sizeof(Shared<R>), s, b);
  });
}

}  // namespace weft::cuda
