#include "weft/core/kernels/gated_delta.h"
#include "weft/cuda/gated_delta_tile.h"

// Three passes: whatever does not need the state, for all chunks at once; the state from chunk to
// chunk, 64 of its columns per block; the outputs, for all chunks at once.

namespace weft::cuda {
namespace {

template <class R>
struct Shared {
  DeltaStage<R> stage;
  DeltaDecays<R> decay;
  DeltaSquare<R> first, second;
};

// (I + A)^-1 with A = beta (k k^T) under the decays, strictly lower triangular; W = (I + A)^-1 beta
// e^G k and U = (I + A)^-1 beta v.
template <class T, class R>
__global__ void gated_delta_prepare_kernel(GatedDeltaSpec s, const T* k, const T* v, const R* g,
                                           const R* beta, R* w, R* x, R* inverse) {
  const std::int64_t slot = blockIdx.x, head = blockIdx.y, item = slot * s.value_heads + head;
  const DeltaChunk at = s.chunk(slot);
  if (at.count <= 0) return;  // the whole block
  Shared<R>& m = *dynamic_shared<Shared<R>>();
  const DeltaRows<T, R> rows(s, at, head, k, k, v, g, beta);
  m.decay.load(rows.g, rows.beta, s.value_heads, rows.n);
  DeltaTile<R> tile;
  tile.template add<true, true>(
      m.stage, rows.K, [&](int i, int c) { return rows.key(i, c); },
      [&](int j, int c) { return rows.key(j, c); });
  tile.each([&](int i, int j, R& kk) {
    const bool below = j < i && i < rows.n;
    m.first[i][j] = below ? m.decay.beta[i] * kk * m.decay.between(i, j) : R(0);
  });
  __syncthreads();
  // By rows from the top; a thread has a column to itself.
  if (const int j = static_cast<int>(threadIdx.x); j < kDeltaSide)
    for (int i = 0; i < kDeltaSide; ++i) {
      R sum = i == j ? R(1) : R(0);
      for (int p = 0; p < i; ++p) sum -= m.first[i][p] * m.second[p][j];
      m.second[i][j] = sum;
    }
  __syncthreads();
  const auto solved = [&](int i, int p) { return m.second[i][p]; };
  for (int c0 = 0; c0 < rows.K; c0 += kDeltaSide) {
    DeltaTile<R> out;
    out.template add<false, false>(m.stage, rows.n, solved, [&](int j, int p) {
      return m.decay.beta[p] * m.decay.from_start[p] * rows.key(p, c0 + j);
    });
    out.each([&](int i, int j, R& value) {
      if (c0 + j < rows.K) w[(item * kDeltaSide + i) * rows.K + c0 + j] = value;
    });
  }
  for (int c0 = 0; c0 < rows.V; c0 += kDeltaSide) {
    DeltaTile<R> out;
    out.template add<false, false>(m.stage, rows.n, solved, [&](int j, int p) {
      return m.decay.beta[p] * rows.value(p, c0 + j);
    });
    out.each([&](int i, int j, R& value) {
      if (c0 + j < rows.V) x[(item * kDeltaSide + i) * rows.V + c0 + j] = value;
    });
  }
  if (inverse)
    for (int e = static_cast<int>(threadIdx.x); e < kDeltaSide * kDeltaSide; e += kDeltaThreads)
      inverse[item * kDeltaSide * kDeltaSide + e] = m.second[e / kDeltaSide][e % kDeltaSide];
}

// X = U - W S, then S = e^(all of g) S + k^T (X under the decays to the end).
template <class T, class R>
__global__ void gated_delta_states_kernel(GatedDeltaSpec s, const T* k, const R* g, const R* beta,
                                          const R* w, R* x, const R* start, R* states, R* final) {
  const std::int64_t sequence = blockIdx.x / s.value_heads, head = blockIdx.x % s.value_heads;
  const int column0 = static_cast<int>(blockIdx.y) * kDeltaSide, V = static_cast<int>(s.value_dim);
  const std::int64_t first = s.first_slot(sequence), chunks = s.chunks(sequence);
  Shared<R>& m = *dynamic_shared<Shared<R>>();
  const auto state_at = [&](std::int64_t chunk) {
    return chunk < chunks ? states + ((first + chunk) * s.value_heads + head) * s.state_size()
                          : final + blockIdx.x * s.state_size();
  };
  for (int e = static_cast<int>(threadIdx.x); e < s.key_dim * kDeltaSide; e += kDeltaThreads) {
    const int j = column0 + e % kDeltaSide;
    const std::int64_t to = std::int64_t{e / kDeltaSide} * V + j;
    if (j < V) state_at(0)[to] = start ? start[blockIdx.x * s.state_size() + to] : R(0);
  }
  __syncthreads();
  for (std::int64_t c = 0; c < chunks; ++c) {
    const DeltaRows<T, R> rows(s, s.chunk(first + c), head, k, k, k, g, beta);
    const std::int64_t item = (first + c) * s.value_heads + head;
    const R *before = state_at(c), *factor = w + item * kDeltaSide * rows.K;
    R *after = state_at(c + 1), *updates = x + item * kDeltaSide * V;
    m.decay.load(rows.g, rows.beta, s.value_heads, rows.n);
    const auto state = [&](int j, int p) {
      return column0 + j < V ? before[std::int64_t{p} * V + column0 + j] : R(0);
    };
    DeltaTile<R> tile;
    tile.template add<true, false>(
        m.stage, rows.K, [&](int i, int p) { return -factor[i * rows.K + p]; }, state);
    tile.each([&](int i, int j, R& value) {
      R late = 0;
      if (column0 + j < V) {
        R& update = updates[i * V + column0 + j];
        update += value;
        late = m.decay.to_end[i] * update;
      }
      m.first[i][j] = late;
    });
    for (int k0 = 0; k0 < rows.K; k0 += kDeltaSide) {
      DeltaTile<R> next;
      next.template add<false, false>(
          m.stage, rows.n, [&](int i, int p) { return rows.key(p, k0 + i); },
          [&](int j, int p) { return m.first[p][j]; });
      next.each([&](int i, int j, R& value) {
        if (k0 + i < rows.K && column0 + j < V)
          after[std::int64_t{k0 + i} * V + column0 + j] =
              m.decay.whole(rows.n) * state(j, k0 + i) + value;
      });
    }
    __syncthreads();
  }
}

// y = scale e^G q S + P X.
template <class T, class R>
__global__ void gated_delta_output_kernel(GatedDeltaSpec s, const T* q, const T* k, const R* g,
                                          const R* beta, const R* x, const R* states, T* y) {
  const std::int64_t slot = blockIdx.x, head = blockIdx.y, item = slot * s.value_heads + head;
  const DeltaChunk at = s.chunk(slot);
  if (at.count <= 0) return;  // the whole block
  Shared<R>& m = *dynamic_shared<Shared<R>>();
  const DeltaRows<T, R> rows(s, at, head, q, k, y, g, beta);
  const R scale = static_cast<R>(s.scale);
  const R *updates = x + item * kDeltaSide * rows.V, *state = states + item * s.state_size();
  T* out = y + at.first * rows.value_row + head * s.value_dim;
  m.decay.load(rows.g, rows.beta, s.value_heads, rows.n);
  delta_output_weights(rows, m.decay, scale, m.stage, m.first);
  for (int c0 = 0; c0 < rows.V; c0 += kDeltaSide) {
    DeltaTile<R> tile;
    tile.template add<true, false>(
        m.stage, rows.K, [&](int i, int p) { return rows.query(i, p); },
        [&](int j, int p) { return c0 + j < rows.V ? state[p * rows.V + c0 + j] : R(0); });
    tile.each([&](int i, int, R& value) { value *= scale * m.decay.from_start[i]; });
    tile.template add<false, false>(
        m.stage, rows.n, [&](int i, int p) { return m.first[i][p]; },
        [&](int j, int p) { return c0 + j < rows.V ? updates[p * rows.V + c0 + j] : R(0); });
    tile.each([&](int i, int j, R& value) {
      if (i < rows.n && c0 + j < rows.V) out[i * rows.value_row + c0 + j] = narrow<T>(value);
    });
  }
}

// Token by token, as when text is generated. A lane has a column of the state, which the warps
// share by rows; `final` holds the state in between.
template <class T, class R>
__global__ void gated_delta_step_kernel(GatedDeltaSpec s, const T* q, const T* k, const T* v,
                                        const R* g, const R* beta, const R* start, R* final, T* y) {
  constexpr int kWarps = kDeltaThreads / kWarp;
  WEFT_SHARED(parts, R[kWarps][kWarp]);
  const std::int64_t sequence = blockIdx.x / s.value_heads, head = blockIdx.x % s.value_heads;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int column = static_cast<int>(blockIdx.y) * kWarp + lane;
  const int K = column < s.value_dim ? static_cast<int>(s.key_dim) : 0;  // rows to look at
  const std::int64_t state = blockIdx.x * s.state_size() + column, first = s.all.begin(sequence);
  // The sum over all warps, for every one of them; always in the same order.
  const auto total = [&](R part) {
    parts[warp][lane] = part;
    __syncthreads();
    R sum = 0;
    for (int i = 0; i < kWarps; ++i) sum += parts[i][lane];
    __syncthreads();
    return sum;
  };
  for (std::int64_t t = first; t < s.all.end(sequence); ++t) {
    const DeltaRows<T, R> row(s, {sequence, t, 1}, head, q, k, v, g, beta);
    const R decay = exp_of(row.g[0]);
    const R* before = t == first ? start : final;
    R found = 0, out = 0;
    for (int p = warp; p < K; p += kWarps) {
      const std::int64_t at = state + p * s.value_dim;
      const R now = before ? decay * before[at] : R(0);
      final[at] = now;
      found += now * row.key(0, p);
    }
    const R update = row.beta[0] * (row.value(0, column) - total(found));
    for (int p = warp; p < K; p += kWarps) {
      const std::int64_t at = state + p * s.value_dim;
      final[at] += row.key(0, p) * update;
      out += final[at] * row.query(0, p);
    }
    out = total(out);
    if (warp == 0 && K > 0)
      y[t * row.value_row + head * s.value_dim + column] = narrow<T>(static_cast<R>(s.scale) * out);
  }
}

}  // namespace

template <class T, class R>
void delta_prepare(const GatedDeltaSpec& s, const T* k, const T* v, const R* g, const R* beta, R* w,
                   R* x, R* inverse) {
  launch(gated_delta_prepare_kernel<T, R>, grid_of(s.slots(), s.value_heads), kDeltaThreads,
         sizeof(Shared<R>), s, k, v, g, beta, w, x, inverse);
}
template void delta_prepare(const GatedDeltaSpec&, const float*, const float*, const float*,
                            const float*, float*, float*, float*);
template void delta_prepare(const GatedDeltaSpec&, const bf16*, const bf16*, const float*,
                            const float*, float*, float*, float*);
template void delta_prepare(const GatedDeltaSpec&, const f16*, const f16*, const float*,
                            const float*, float*, float*, float*);
template void delta_prepare(const GatedDeltaSpec&, const double*, const double*, const double*,
                            const double*, double*, double*, double*);

void gated_delta_fwd(const GatedDeltaFwdIn& in, const GatedDeltaSpec& s,
                     const GatedDeltaFwdOut& out) {
  dispatch_floating(in.q.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T *q = in.q.data<T>(), *k = in.k.data<T>(), *v = in.v.data<T>();
    const R *g = in.g.data<R>(), *beta = in.beta.data<R>(), *start = data_or_null<R>(in.state);
    R *states = data_or_null<R>(out.states), *final = out.final.data<R>();
    T* y = out.y.data<T>();
    if (!out.states.defined()) {
      launch(gated_delta_step_kernel<T, R>,
             grid_of(s.all.count * s.value_heads, blocks_for(s.value_dim, kWarp)), kDeltaThreads, 0,
             s, q, k, v, g, beta, start, final, y);
      return;
    }
    R* w = out.scratch.data<R>();
    R* x = w + s.slots() * s.value_heads * kDeltaChunk * s.key_dim;
    delta_prepare<T, R>(s, k, v, g, beta, w, x, nullptr);
    launch(gated_delta_states_kernel<T, R>,
           grid_of(s.all.count * s.value_heads, blocks_for(s.value_dim, kDeltaSide)), kDeltaThreads,
           sizeof(Shared<R>), s, k, g, beta, w, x, start, states, final);
    launch(gated_delta_output_kernel<T, R>, grid_of(s.slots(), s.value_heads), kDeltaThreads,
           sizeof(Shared<R>), s, q, k, g, beta, x, states, y);
  });
}

}  // namespace weft::cuda
