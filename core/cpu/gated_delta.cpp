#include "weft/core/cpu/gated_delta_chunk.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// One head of one chunk. state (K, V): before the chunk on entry, after it on return.
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

void gated_delta_fwd(const GatedDeltaFwdIn& in, const GatedDeltaSpec& s,
                     const GatedDeltaFwdOut& out) {
  const std::int64_t Hv = s.value_heads, size = s.state_size(), room = delta_fwd_scratch_cpu(s);
  const std::int64_t items = s.all.count * Hv;
  if (items == 0) return;
  const auto run = [&]<class T>() {
    const DeltaOperands<T> operands(in);
    const T* const start = data_or_null<T>(in.state);
    T *const kept = data_or_null<T>(out.states), *const scratch = out.scratch.data<T>();
    T *const y = out.y.data<T>(), *const final = out.final.data<T>();
    const std::int64_t work = (s.tokens / s.all.count + 1) * (size / 2 + 8 * kDeltaChunk);
    parallel_for(items, work, [=, &s](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t sequence = i / Hv, head = i % Hv;
        T* const state = final + i * size;
        start ? std::copy_n(start + i * size, size, state) : std::fill_n(state, size, T(0));
        for (std::int64_t c = 0; c < s.chunks(sequence); ++c) {
          const std::int64_t slot = s.first_slot(sequence) + c;
          if (kept) std::copy_n(state, size, kept + (slot * Hv + head) * size);
          const DeltaHead<T> h(s, s.chunk(slot), head, operands);
          forward(h, head, DeltaMatrix<T>{state, s.value_dim}, scratch + i * room, y);
        }
      }
    });
  };
  in.q.dtype() == DType::f64 ? run.template operator()<double>() : run.template operator()<float>();
}

}  // namespace weft::cpu
