#include "weft/core/cpu/gated_delta_chunk.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// One head of one chunk; the state, (K, V), goes on from before the chunk to behind it.
template <class T>
void forward(const DeltaHead<T>& h, std::int64_t head, DeltaMatrix<T> state, T* scratch, T* py) {
  constexpr std::int64_t C = kDeltaChunk;
  const std::int64_t n = h.n, K = h.K, V = h.V;
  const DeltaMatrix<T> below{scratch, C}, p{below[C], C}, kt{p[C], C}, x{kt[K], V}, late{x[C], V};
  const DeltaMatrix<const T> before{state.p, V};
  h.couple(kt, {below.p, C}, p, [](std::int64_t, const T*, const T*) {});
  h.updates(before, {below.p, C}, x);

  const DeltaMatrix<T> y = h.row(py, h.Hv, head, V);
  h.math.product(h.q, before, y, n, V, K);
  for (std::int64_t i = 0; i < n; ++i) {
    const T e = static_cast<T>(h.s.scale) * h.decay.from_start[i];
    for (std::int64_t c = 0; c < V; ++c) y[i][c] *= e;
  }
  h.math.by_lower({p.p, C}, {x.p, V}, y, n, V, true);

  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t c = 0; c < V; ++c) late[i][c] = h.decay.to_end[i] * x[i][c];
  for (std::int64_t i = 0; i < K * V; ++i) state.p[i] *= h.decay.whole;
  h.math.product(h.k.t(), {late.p, V}, state, K, V, n, true);
}

}  // namespace

void gated_delta_fwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                     const Tensor& beta, const Tensor& state, const GatedDeltaSpec& s,
                     const Tensor& scratch, const Tensor& states, const Tensor& y,
                     const Tensor& final) {
  const std::int64_t Hv = s.value_heads, size = s.state_size(), room = delta_fwd_scratch_cpu(s);
  const std::int64_t items = s.all.count * Hv;
  if (items == 0) return;
  const auto run = [&]<class T>() {
    const T *pq = q.data<T>(), *pk = k.data<T>(), *pv = v.data<T>(), *pg = g.data<T>();
    const T *pb = beta.data<T>(), *start = state ? state.data<T>() : nullptr;
    T *ps = scratch.data<T>(), *kept = states ? states.data<T>() : nullptr;
    T *py = y.data<T>(), *pf = final.data<T>();
    const std::int64_t work = (s.tokens / s.all.count + 1) * (size / 2 + 8 * kDeltaChunk);
    parallel_for(items, work, [=, &s](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t sequence = i / Hv, head = i % Hv;
        T* const now = pf + i * size;
        start ? std::copy_n(start + i * size, size, now) : std::fill_n(now, size, T(0));
        for (std::int64_t c = 0; c < s.chunks(sequence); ++c) {
          const std::int64_t slot = s.first_slot(sequence) + c;
          if (kept) std::copy_n(now, size, kept + (slot * Hv + head) * size);
          const DeltaHead<T> h(s, s.chunk(slot), head, pq, pk, pv, pg, pb);
          forward(h, head, DeltaMatrix<T>{now, s.value_dim}, ps + i * room, py);
        }
      }
    });
  };
  q.dtype() == DType::f64 ? run.template operator()<double>() : run.template operator()<float>();
}

}  // namespace weft::cpu
