#include "weft/core/kernels/recurrent.h"

#include <algorithm>
#include <numeric>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/elementwise_math.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/parallel.h"

// Each thread takes a block of sequences through all time steps: no thread waits for another, and
// the packed weight stays in its cache. Every row of the products is computed alone, so the bits do
// not depend on the blocks.

namespace weft::cpu {
namespace {

constexpr std::int64_t kSequences = 64;  // at most, in a block

// The reference arithmetic.
struct CellMath {
  using V = double;
  static double read(const double* p, std::int64_t) { return *p; }
  static void write(double* p, std::int64_t, double x) { *p = x; }
  static double one() { return 1; }
  static double sigmoid_of(double x) { return weft::sigmoid_of(x); }
  static double tanh_of(double x) { return std::tanh(x); }
};

template <class Cell>
void forward_f64(const RecurrentStep<double>& s) {
  for (std::int64_t i = 0; i < s.n; ++i) Cell::forward(s, i, 1);
}
template <class Cell>
void backward_f64(const RecurrentStepBwd<double>& s) {
  for (std::int64_t i = 0; i < s.n; ++i) Cell::backward(s, i, 1);
}

// One time step of a cell by its kind.
inline auto forward_step(RecurrentKind kind, float) {
  return kind == RecurrentKind::gru ? simd().recurrent.gru : simd().recurrent.lstm;
}
inline auto backward_step(RecurrentKind kind, float) {
  return kind == RecurrentKind::gru ? simd().recurrent.gru_bwd : simd().recurrent.lstm_bwd;
}
inline auto forward_step(RecurrentKind kind, double) {
  return kind == RecurrentKind::gru ? forward_f64<GruCell<CellMath>>
                                    : forward_f64<LstmCell<CellMath>>;
}
inline auto backward_step(RecurrentKind kind, double) {
  return kind == RecurrentKind::gru ? backward_f64<GruCell<CellMath>>
                                    : backward_f64<LstmCell<CellMath>>;
}

// The products with the weight (G, H), which is packed once for all time steps.
template <class R>
struct Projection {
  const RecurrentSpec& s;
  const R* weight;
  R* packed;
  const PanelKernels<R>& kernels = simd().panels<R>();

  void pack_forward() const {
    each_panel(s.gates(), s.units, [&](std::int64_t j, std::int64_t n, R* panel) {
      kernels.pack_transposed(weight + j * s.units, s.units, n, s.units, panel);
    });
  }
  void pack_backward() const {
    each_panel(s.units, s.gates(), [&](std::int64_t j, std::int64_t n, R* panel) {
      kernels.pack_panel(weight + j, s.units, s.gates(), n, panel);
    });
  }
  // hidden = h weight^T + bias
  void project(const R* h, const R* bias, R* hidden, std::int64_t rows) const {
    kernels.product({.a = h,
                     .lda = s.units,
                     .panels = packed,
                     .c = hidden,
                     .ldc = s.gates(),
                     .m = rows,
                     .n = s.gates(),
                     .k = s.units,
                     .start = bias});
  }
  // dh += dhidden weight
  void project_back(const R* dhidden, R* dh, std::int64_t rows) const {
    kernels.product({.a = dhidden,
                     .lda = s.gates(),
                     .panels = packed,
                     .c = dh,
                     .ldc = s.units,
                     .m = rows,
                     .n = s.units,
                     .k = s.gates(),
                     .start = dh,
                     .start_row = s.units});
  }

 private:
  template <class F>
  void each_panel(std::int64_t n, std::int64_t k, const F& pack) const {
    const std::int64_t columns = kernels.columns;
    parallel_for(
        (n + columns - 1) / columns, columns * k, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t j = begin * columns; j < std::min(n, end * columns); j += columns)
            pack(j, std::min(columns, n - j), packed + j * k);
        });
  }
};

// Some sequences, the longest first: those that have a token at step t are the first `active(t)`.
struct Block {
  const Sequences& all;
  std::int64_t count;
  std::int64_t sequence[kSequences];

  Block(const Sequences& sequences, std::int64_t first, std::int64_t n) : all(sequences), count(n) {
    std::iota(sequence, sequence + n, first);
    if (all.cu_seqlens)
      std::sort(sequence, sequence + n, [this](std::int64_t a, std::int64_t b) {
        const std::int64_t la = length(a), lb = length(b);
        return la != lb ? la > lb : a < b;
      });
  }
  std::int64_t length(std::int64_t i) const { return all.end(i) - all.begin(i); }
  std::int64_t steps() const { return length(sequence[0]); }
  std::int64_t active(std::int64_t t) const {
    const auto has_token = [&](std::int64_t i) { return length(i) > t; };
    return std::partition_point(sequence, sequence + count, has_token) - sequence;
  }
  std::int64_t token(std::int64_t row, std::int64_t t) const {
    return all.begin(sequence[row]) + t;
  }
};

// Calls body(block, scratch of its sequences) for all sequences, as evenly as the threads permit.
template <class R, class F>
void each_block(const RecurrentSpec& s, R* scratch, const F& body) {
  const std::int64_t n = s.all.count, threads = detail::in_parallel() ? 1 : num_threads();
  const std::int64_t rows = std::clamp<std::int64_t>((n + threads - 1) / threads, 1, kSequences);
  parallel_for((n + rows - 1) / rows, s.steps * rows * s.gates() * (s.units / 8 + 4) + 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i)
                   body(Block(s.all, i * rows, std::min(rows, n - i * rows)),
                        scratch + i * rows * s.scratch());
               });
}

// Rows of a state (sequences, n) between the caller's order and that of a block; null: zeros.
template <class R>
void load_state(const Block& b, const R* state, std::int64_t n, R* rows) {
  for (std::int64_t r = 0; r < b.count; ++r)
    state ? std::copy_n(state + b.sequence[r] * n, n, rows + r * n)
          : std::fill_n(rows + r * n, n, R(0));
}
template <class R>
void store_state(const Block& b, const R* rows, std::int64_t n, R* state) {
  for (std::int64_t r = 0; state && r < b.count; ++r)
    std::copy_n(rows + r * n, n, state + b.sequence[r] * n);
}

template <class R>
void forward(const RecurrentFwdIn& in, const RecurrentSpec& s, const RecurrentFwdOut& out) {
  const std::int64_t H = s.units, G = s.gates();
  const Projection<R> weight{s, in.weight.data<R>(), out.packed.data<R>()};
  const R *gates = in.gates.data<R>(), *bias = data_or_null<R>(in.bias);
  const R *h0 = data_or_null<R>(in.h), *c0 = data_or_null<R>(in.c);
  R *saved = data_or_null<R>(out.saved), *y = out.y.data<R>();
  const auto step = forward_step(s.kind, R{});
  weight.pack_forward();
  each_block(s, out.scratch.data<R>(), [&](const Block& b, R* scratch) {
    R *hidden = scratch, *h = hidden + b.count * G, *c = h + b.count * H;
    load_state(b, h0, H, h);
    load_state(b, c0, H, c);
    for (std::int64_t t = 0; t < b.steps(); ++t) {
      const std::int64_t active = b.active(t);
      weight.project(h, bias, hidden, active);
      for (std::int64_t r = 0; r < active; ++r) {
        const std::int64_t token = b.token(r, t);
        step({.gates = gates + token * G,
              .hidden = hidden + r * G,
              .bias = nullptr,  // the product has added it
              .h = h + r * H,
              .c = c + r * H,
              .saved = row_or_null(saved, token * s.saved()),
              .y = y + token * H,
              .n = H});
      }
    }
    store_state(b, h, H, out.h.data<R>());
    store_state(b, c, H, data_or_null<R>(out.c));
  });
}

template <class R>
void backward(const RecurrentBwdIn& in, const RecurrentSpec& s, const RecurrentBwdOut& out) {
  const std::int64_t H = s.units, G = s.gates(), S = s.saved();
  const Projection<R> weight{s, in.weight.data<R>(), out.packed.data<R>()};
  const R *saved = in.saved.data<R>(), *y = in.y.data<R>(), *dy = data_or_null<R>(in.dy);
  const R *h0 = data_or_null<R>(in.h), *c0 = data_or_null<R>(in.c);
  R *dgates = out.dgates.data<R>(), *kept = data_or_null<R>(out.dhidden);
  R* previous = out.previous.data<R>();
  const auto step = backward_step(s.kind, R{});
  weight.pack_backward();
  each_block(s, out.scratch.data<R>(), [&](const Block& b, R* scratch) {
    R *dhidden = scratch, *dh = dhidden + b.count * G, *dc = dh + b.count * H;
    load_state(b, data_or_null<R>(in.dh), H, dh);
    load_state(b, data_or_null<R>(in.dc), H, dc);
    for (std::int64_t t = b.steps() - 1; t >= 0; --t) {
      const std::int64_t active = b.active(t);
      for (std::int64_t r = 0; r < active; ++r) {
        const std::int64_t token = b.token(r, t), first = b.sequence[r] * H;
        step({.saved = saved + token * S,
              .h = t > 0 ? y + (token - 1) * H : row_or_null(h0, first),
              .c = t > 0 ? saved + token * S - H : row_or_null(c0, first),
              .dy = row_or_null(dy, token * H),
              .dh = dh + r * H,
              .dc = dc + r * H,
              .dgates = dgates + token * G,
              .dhidden = dhidden + r * G,
              .dhidden_kept = row_or_null(kept, token * G),
              .previous = previous + token * H,
              .n = H});
      }
      weight.project_back(dhidden, dh, active);
    }
    store_state(b, dh, H, out.dh.data<R>());
    store_state(b, dc, H, data_or_null<R>(out.dc));
  });
}

}  // namespace

void recurrent_fwd(const RecurrentFwdIn& in, const RecurrentSpec& s, const RecurrentFwdOut& out) {
  in.gates.dtype() == DType::f64 ? forward<double>(in, s, out) : forward<float>(in, s, out);
}

void recurrent_bwd(const RecurrentBwdIn& in, const RecurrentSpec& s, const RecurrentBwdOut& out) {
  in.weight.dtype() == DType::f64 ? backward<double>(in, s, out) : backward<float>(in, s, out);
}

}  // namespace weft::cpu
