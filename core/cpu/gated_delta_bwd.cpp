#include "weft/core/cpu/gated_delta_chunk.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

template <class T>
struct Gradients {
  T *q, *k, *v, *g, *beta;
};

// The backward pass of one head of one chunk. `before` is the state before the chunk. ds is the
// gradient of the state after the chunk on entry, and of `before` on return.
template <class T>
class BackwardHead {
 public:
  BackwardHead(const DeltaHead<T>& head_of_chunk, std::int64_t index, const T* dy, const T* before,
               T* ds, T* scratch, const Gradients<T>& grads)
      : head(head_of_chunk),
        below{scratch, C},
        weights{below[C], C},
        coupling{weights[C], C},
        decays{coupling[C], C},
        dqk{decays[C], C},
        dkk{dqk[C], C},
        k_transposed{dkk[C], C},
        updates_transposed{k_transposed[head.K], C},
        updates{updates_transposed[head.V], head.V},
        dupdates{updates[C], head.V},
        token_rows{dupdates[C], std::max(head.K, head.V)},
        transposed{token_rows[C], head.K},
        state{before, head.V},
        dstate{ds, head.V},
        dout(head.row(dy, head.Hv, index, head.V)),
        dq(head.row(grads.q, head.Hv, index, head.K)),
        dk(head.row(grads.k, head.Hv, index, head.K)),
        dv(head.row(grads.v, head.Hv, index, head.V)),
        dbeta(head.row(grads.beta, head.Hv, index, 1)),
        dg(head.row(grads.g, head.Hv, index, 1)) {}

  void run() {
    head.couple(k_transposed, below, weights, [this](std::int64_t i, const T* d, const T* kk) {
      for (std::int64_t j = 0; j <= i; ++j) {
        decays[i][j] = d[j];
        coupling[i][j] = kk[j] * d[j];
      }
    });
    head.updates(state, fixed(below), updates);
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

  // dupdates: the gradient of beta (v - e^G k S), from that of the updates.
  void update_gradients() {
    head.math.product(head.k, fixed(dstate), dupdates, head.n, head.V, head.K);
    for (std::int64_t i = 0; i < head.n; ++i)
      for (std::int64_t c = 0; c < head.V; ++c) dupdates[i][c] *= head.decay.to_end[i];
    head.math.by_lower_transposed(fixed(weights), dout, dupdates, head.n, head.V, true);
    solve_lower_transposed(head.math, fixed(below), dupdates, head.n, head.V);
  }

  // dqk and dkk: the gradients of q k^T and k k^T. Writes dbeta; the steps below add to it.
  void score_gradients() {
    head.math.transpose(fixed(updates), head.n, head.V, updates_transposed);
    head.math.lower_part(dout, fixed(updates_transposed), dqk, head.n, head.V);
    head.math.lower_part(fixed(dupdates), fixed(updates_transposed), dkk, head.n, head.V);
    const T scale = static_cast<T>(head.s.scale);
    for (std::int64_t i = 0; i < head.n; ++i) {
      const T b = head.beta[i * head.Hv];
      T db = 0;
      for (std::int64_t j = 0; j <= i; ++j) {
        const T through_weights = dqk[i][j] * weights[i][j], da = j < i ? -dkk[i][j] : T(0);
        const T change = through_weights - da * below[i][j];
        dlog[i] += static_cast<double>(change);
        dlog[j] -= static_cast<double>(change);
        db += da * coupling[i][j];
        dqk[i][j] *= scale * decays[i][j];
        dkk[i][j] = da * b * decays[i][j];
      }
      std::fill(dqk[i] + i + 1, dqk[i] + head.n, T(0));
      std::fill(dkk[i] + i + 1, dkk[i] + head.n, T(0));
      dbeta[i][0] = db;
    }
  }

  void query_gradients() {
    head.math.transpose(state, head.K, head.V, transposed);
    head.math.product(dout, fixed(transposed), token_rows, head.n, head.K, head.V);
    for (std::int64_t i = 0; i < head.n; ++i) {
      const T factor = static_cast<T>(head.s.scale) * head.decay.from_start[i];
      dlog[i] += static_cast<double>(factor * head.math.dot(token_rows[i], head.q[i], head.K));
      for (std::int64_t c = 0; c < head.K; ++c) dq[i][c] = factor * token_rows[i][c];
    }
    head.math.by_lower(fixed(dqk), head.k, dq, head.n, head.K, true);
  }

  void key_gradients() {
    head.math.by_lower_transposed(fixed(dqk), head.q, dk, head.n, head.K);
    head.math.by_lower(fixed(dkk), head.k, dk, head.n, head.K, true);
    head.math.by_lower_transposed(fixed(dkk), head.k, dk, head.n, head.K, true);
    head.math.product(fixed(dupdates), fixed(transposed), token_rows, head.n, head.K, head.V);
    for (std::int64_t i = 0; i < head.n; ++i) {
      const T b = head.beta[i * head.Hv], factor = head.decay.from_start[i];
      const T read = factor * head.math.dot(token_rows[i], head.k[i], head.K);
      dbeta[i][0] += head.math.dot(dupdates[i], head.v[i], head.V) - read;
      dlog[i] -= static_cast<double>(b * read);
      for (std::int64_t c = 0; c < head.K; ++c) dk[i][c] -= b * factor * token_rows[i][c];
      for (std::int64_t c = 0; c < head.V; ++c) dv[i][c] = b * dupdates[i][c];
    }
    head.math.transpose(fixed(dstate), head.K, head.V, transposed);
    head.math.product(fixed(updates), fixed(transposed), token_rows, head.n, head.K, head.V);
    for (std::int64_t i = 0; i < head.n; ++i) {
      const T factor = head.decay.to_end[i];
      const auto left =
          static_cast<double>(factor * head.math.dot(token_rows[i], head.k[i], head.K));
      dlog[i] -= left;
      dlog[head.n - 1] += left;
      for (std::int64_t c = 0; c < head.K; ++c) dk[i][c] += factor * token_rows[i][c];
    }
  }

  void decay_gradients() {
    T kept = 0;
    for (std::int64_t i = 0; i < head.K; ++i) kept += head.math.dot(dstate[i], state[i], head.V);
    dlog[head.n - 1] += static_cast<double>(head.decay.whole * kept);
    double sum = 0;
    for (std::int64_t i = head.n - 1; i >= 0; --i) {
      sum += dlog[i];  // the terms across a reset cancel, to rounding
      dg[i][0] = head.g[i * head.Hv] <= static_cast<T>(kDeltaReset) ? T(0) : static_cast<T>(sum);
    }
  }

  void state_gradient() {
    for (std::int64_t i = 0; i < head.K * head.V; ++i) dstate.p[i] *= head.decay.whole;
    for (std::int64_t i = 0; i < head.n; ++i) {
      const T factor = static_cast<T>(head.s.scale) * head.decay.from_start[i];
      for (std::int64_t c = 0; c < head.V; ++c) token_rows[i][c] = factor * dout[i][c];
    }
    head.math.product(head.q.t(), fixed(token_rows), dstate, head.K, head.V, head.n, true);
    for (std::int64_t i = 0; i < head.n; ++i)
      for (std::int64_t c = 0; c < head.V; ++c)
        token_rows[i][c] = -head.decay.from_start[i] * dv[i][c];
    head.math.product(head.k.t(), fixed(token_rows), dstate, head.K, head.V, head.n, true);
  }

  const DeltaHead<T>& head;
  // In the scratch of the sequence's head. In the formulas of DeltaHead: below = -A, weights = P
  // and updates = X. coupling is k k^T under the decays; token_rows and transposed hold several
  // things.
  DeltaMatrix<T> below, weights, coupling, decays, dqk, dkk;
  DeltaMatrix<T> k_transposed, updates_transposed, updates, dupdates, token_rows, transposed;
  DeltaMatrix<const T> state;
  DeltaMatrix<T> dstate;
  DeltaMatrix<const T> dout;
  DeltaMatrix<T> dq, dk, dv, dbeta, dg;
  double dlog[C] = {};  // the gradient of decay.log
};

}  // namespace

void gated_delta_bwd(const GatedDeltaBwdIn& in, const GatedDeltaSpec& s,
                     const GatedDeltaBwdOut& out) {
  const std::int64_t Hv = s.value_heads, size = s.state_size(), room = delta_bwd_scratch_cpu(s);
  const std::int64_t items = s.all.count * Hv;
  if (items == 0) return;
  const auto run = [&]<class T>() {
    const DeltaOperands<T> operands(in);
    const T *const states = in.states.data<T>(), *const dy = in.dy.data<T>();
    const T* const dfinal = data_or_null<T>(in.dfinal);
    T *const scratch = out.scratch.data<T>(), *const dstates = out.dstate.data<T>();
    const Gradients<T> grads{out.dq.data<T>(), out.dk.data<T>(), out.dv.data<T>(), out.dg.data<T>(),
                             out.dbeta.data<T>()};
    const std::int64_t work = (s.tokens / s.all.count + 1) * (size + 16 * kDeltaChunk);
    parallel_for(items, work, [=, &s](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t sequence = i / Hv, head = i % Hv;
        T* const dstate = dstates + i * size;
        dfinal ? std::copy_n(dfinal + i * size, size, dstate) : std::fill_n(dstate, size, T(0));
        for (std::int64_t c = s.chunks(sequence) - 1; c >= 0; --c) {
          const std::int64_t slot = s.first_slot(sequence) + c;
          const DeltaHead<T> h(s, s.chunk(slot), head, operands);
          BackwardHead<T>(h, head, dy, states + (slot * Hv + head) * size, dstate,
                          scratch + i * room, grads)
              .run();
        }
      }
    });
  };
  in.q.dtype() == DType::f64 ? run.template operator()<double>() : run.template operator()<float>();
}

}  // namespace weft::cpu
