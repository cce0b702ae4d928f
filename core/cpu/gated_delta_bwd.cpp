#include "weft/core/cpu/gated_delta_chunk.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

template <class T>
struct Gradients {
  T *q, *k, *v, *g, *beta;
};

// One head of one chunk, backwards. `before` is the state in front of the chunk; ds, the gradient
// of the one behind it, becomes that of `before`.
template <class T>
class BackwardHead {
 public:
  BackwardHead(const DeltaHead<T>& head_of_chunk, std::int64_t head, const T* dy, const T* before,
               T* ds, T* scratch, const Gradients<T>& grads)
      : h(head_of_chunk),
        below{scratch, C},
        p{below[C], C},
        coupling{p[C], C},
        decays{coupling[C], C},
        f{decays[C], C},
        e{f[C], C},
        kt{e[C], C},
        xt{kt[h.K], C},
        x{xt[h.V], h.V},
        dx{x[C], h.V},
        wide{dx[C], std::max(h.K, h.V)},
        turned{wide[C], h.K},
        state{before, h.V},
        dstate{ds, h.V},
        dout(h.row(dy, h.Hv, head, h.V)),
        dq(h.row(grads.q, h.Hv, head, h.K)),
        dk(h.row(grads.k, h.Hv, head, h.K)),
        dv(h.row(grads.v, h.Hv, head, h.V)),
        dbeta(h.row(grads.beta, h.Hv, head, 1)),
        dg(h.row(grads.g, h.Hv, head, 1)) {}

  void run() {
    h.couple(kt, below, p, [this](std::int64_t i, const T* d, const T* kk) {
      for (std::int64_t j = 0; j <= i; ++j) {
        decays[i][j] = d[j];
        coupling[i][j] = kk[j] * d[j];
      }
    });
    h.updates(state, fixed(below), x);
    update_gradients();
    score_gradients();
    query_gradients();
    key_gradients();
    decay_gradients();
    state_gradient();
  }

 private:
  static constexpr std::int64_t C = kDeltaChunk;
  static DeltaMatrix<const T> fixed(DeltaMatrix<T> m) { return {m.p, m.row, m.col}; }

  // dx: the gradient of beta (v - e^G k S), through that of the updates.
  void update_gradients() {
    h.math.product(h.k, fixed(dstate), dx, h.n, h.V, h.K);
    for (std::int64_t i = 0; i < h.n; ++i)
      for (std::int64_t c = 0; c < h.V; ++c) dx[i][c] *= h.decay.to_end[i];
    h.math.by_lower_transposed(fixed(p), dout, dx, h.n, h.V, true);
    solve_lower_transposed(h.math, fixed(below), dx, h.n, h.V);
  }

  // f and e: the gradients of q k^T and k k^T. From here on dlog and dbeta are added to.
  void score_gradients() {
    h.math.transpose(fixed(x), h.n, h.V, xt);
    h.math.lower_part(dout, fixed(xt), f, h.n, h.V);
    h.math.lower_part(fixed(dx), fixed(xt), e, h.n, h.V);
    const T scale = static_cast<T>(h.s.scale);
    for (std::int64_t i = 0; i < h.n; ++i) {
      const T b = h.beta[i * h.Hv];
      T db = 0;
      for (std::int64_t j = 0; j <= i; ++j) {
        const T through_p = f[i][j] * p[i][j], da = j < i ? -e[i][j] : T(0);
        const T change = through_p - da * below[i][j];
        dlog[i] += static_cast<double>(change);
        dlog[j] -= static_cast<double>(change);
        db += da * coupling[i][j];
        f[i][j] *= scale * decays[i][j];
        e[i][j] = da * b * decays[i][j];
      }
      std::fill(f[i] + i + 1, f[i] + h.n, T(0));
      std::fill(e[i] + i + 1, e[i] + h.n, T(0));
      dbeta[i][0] = db;
    }
  }

  void query_gradients() {
    h.math.transpose(state, h.K, h.V, turned);
    h.math.product(dout, fixed(turned), wide, h.n, h.K, h.V);
    for (std::int64_t i = 0; i < h.n; ++i) {
      const T factor = static_cast<T>(h.s.scale) * h.decay.from_start[i];
      dlog[i] += static_cast<double>(factor * h.math.dot(wide[i], h.q[i], h.K));
      for (std::int64_t c = 0; c < h.K; ++c) dq[i][c] = factor * wide[i][c];
    }
    h.math.by_lower(fixed(f), h.k, dq, h.n, h.K, true);
  }

  void key_gradients() {
    h.math.by_lower_transposed(fixed(f), h.q, dk, h.n, h.K);
    h.math.by_lower(fixed(e), h.k, dk, h.n, h.K, true);
    h.math.by_lower_transposed(fixed(e), h.k, dk, h.n, h.K, true);
    h.math.product(fixed(dx), fixed(turned), wide, h.n, h.K, h.V);
    for (std::int64_t i = 0; i < h.n; ++i) {
      const T b = h.beta[i * h.Hv], factor = h.decay.from_start[i];
      const T read = factor * h.math.dot(wide[i], h.k[i], h.K);
      dbeta[i][0] += h.math.dot(dx[i], h.v[i], h.V) - read;
      dlog[i] -= static_cast<double>(b * read);
      for (std::int64_t c = 0; c < h.K; ++c) dk[i][c] -= b * factor * wide[i][c];
      for (std::int64_t c = 0; c < h.V; ++c) dv[i][c] = b * dx[i][c];
    }
    h.math.transpose(fixed(dstate), h.K, h.V, turned);
    h.math.product(fixed(x), fixed(turned), wide, h.n, h.K, h.V);
    for (std::int64_t i = 0; i < h.n; ++i) {
      const T factor = h.decay.to_end[i];
      const auto left = static_cast<double>(factor * h.math.dot(wide[i], h.k[i], h.K));
      dlog[i] -= left;
      dlog[h.n - 1] += left;
      for (std::int64_t c = 0; c < h.K; ++c) dk[i][c] += factor * wide[i][c];
    }
  }

  void decay_gradients() {
    T kept = 0;
    for (std::int64_t i = 0; i < h.K; ++i) kept += h.math.dot(dstate[i], state[i], h.V);
    dlog[h.n - 1] += static_cast<double>(h.decay.whole * kept);
    double sum = 0;
    for (std::int64_t i = h.n - 1; i >= 0; --i) dg[i][0] = static_cast<T>(sum += dlog[i]);
  }

  void state_gradient() {
    for (std::int64_t i = 0; i < h.K * h.V; ++i) dstate.p[i] *= h.decay.whole;
    for (std::int64_t i = 0; i < h.n; ++i) {
      const T factor = static_cast<T>(h.s.scale) * h.decay.from_start[i];
      for (std::int64_t c = 0; c < h.V; ++c) wide[i][c] = factor * dout[i][c];
    }
    h.math.product(h.q.t(), fixed(wide), dstate, h.K, h.V, h.n, true);
    for (std::int64_t i = 0; i < h.n; ++i)
      for (std::int64_t c = 0; c < h.V; ++c) wide[i][c] = -h.decay.from_start[i] * dv[i][c];
    h.math.product(h.k.t(), fixed(wide), dstate, h.K, h.V, h.n, true);
  }

  const DeltaHead<T>& h;
  DeltaMatrix<T> below, p, coupling, decays, f, e, kt, xt, x, dx, wide, turned;
  DeltaMatrix<const T> state;
  DeltaMatrix<T> dstate;
  DeltaMatrix<const T> dout;
  DeltaMatrix<T> dq, dk, dv, dbeta, dg;
  double dlog[C] = {};  // the gradient of decay.log
};

}  // namespace

void gated_delta_bwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                     const Tensor& beta, const Tensor& states, const GatedDeltaSpec& s,
                     const Tensor& dy, const Tensor& dfinal, const Tensor& scratch,
                     const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dg,
                     const Tensor& dbeta, const Tensor& dstate) {
  const std::int64_t Hv = s.value_heads, size = s.state_size(), room = delta_bwd_scratch_cpu(s);
  const std::int64_t items = s.all.count * Hv;
  if (items == 0) return;
  const auto run = [&]<class T>() {
    const T *pq = q.data<T>(), *pk = k.data<T>(), *pv = v.data<T>(), *pg = g.data<T>();
    const T *pb = beta.data<T>(), *kept = states.data<T>(), *pdy = dy.data<T>();
    const T* last = dfinal ? dfinal.data<T>() : nullptr;
    T *ps = scratch.data<T>(), *pds = dstate.data<T>();
    const Gradients<T> grads{dq.data<T>(), dk.data<T>(), dv.data<T>(), dg.data<T>(),
                             dbeta.data<T>()};
    const std::int64_t work = (s.tokens / s.all.count + 1) * (size + 16 * kDeltaChunk);
    parallel_for(items, work, [=, &s](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t sequence = i / Hv, head = i % Hv;
        T* const now = pds + i * size;
        last ? std::copy_n(last + i * size, size, now) : std::fill_n(now, size, T(0));
        for (std::int64_t c = s.chunks(sequence) - 1; c >= 0; --c) {
          const std::int64_t slot = s.first_slot(sequence) + c;
          const DeltaHead<T> h(s, s.chunk(slot), head, pq, pk, pv, pg, pb);
          BackwardHead<T>(h, head, pdy, kept + (slot * Hv + head) * size, now, ps + i * room, grads)
              .run();
        }
      }
    });
  };
  q.dtype() == DType::f64 ? run.template operator()<double>() : run.template operator()<float>();
}

}  // namespace weft::cpu
