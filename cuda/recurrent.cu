#include "weft/core/kernels/elementwise_math.h"
#include "weft/core/kernels/gemm.h"
#include "weft/core/kernels/recurrent.h"
#include "weft/core/kernels/recurrent_cell.h"
#include "weft/cuda/math.h"

// Two launches for each time step: the product of all states with the weight, and the cell, where a
// thread computes one unit of one sequence. Sequences that have ended keep their state.

namespace weft::cuda {
namespace {

constexpr int kThreads = 128;  // units per block

template <class R>
struct CellMath {
  using V = R;
  static constexpr R read(const R* p, std::int64_t) { return *p; }
  static constexpr void write(R* p, std::int64_t, R x) { *p = x; }
  static constexpr R one() { return R(1); }
  static constexpr R sigmoid_of(R x) { return weft::sigmoid_of(x); }
  static constexpr R tanh_of(R x) { return std::tanh(x); }
};

// Calls run<Cell>() with the cell of this kind.
template <class R, class F>
void dispatch_cell(RecurrentKind kind, F run) {
  if (kind == RecurrentKind::gru)
    run.template operator()<GruCell<CellMath<R>>>();
  else
    run.template operator()<LstmCell<CellMath<R>>>();
}

template <class R>
__device__ R* row_at(R* base, std::int64_t offset) {
  return base ? base + offset : nullptr;
}

template <class R>
struct Forward {
  RecurrentSpec s;
  const R *gates, *hidden, *bias;
  R *h, *c, *saved, *y;
};

template <class R>
__global__ void recurrent_state_kernel(std::int64_t n, const R* initial, R* state) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) state[i] = initial ? initial[i] : R(0);
}

template <class Cell, class R>
__global__ void recurrent_fwd_kernel(Forward<R> f, std::int64_t t) {
  const RecurrentSpec& s = f.s;
  const std::int64_t row = blockIdx.x, i = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const std::int64_t token = s.all.begin(row) + t;
  if (i >= s.units || token >= s.all.end(row)) return;
  Cell::forward(RecurrentStep<R>{.gates = f.gates + token * s.gates(),
                                 .hidden = f.hidden + row * s.gates(),
                                 .bias = f.bias,
                                 .h = f.h + row * s.units,
                                 .c = row_at(f.c, row * s.units),
                                 .saved = row_at(f.saved, token * s.saved()),
                                 .y = f.y + token * s.units,
                                 .n = s.units},
                i, 1);
}

// The gradients after the step stay in dh and dc where a sequence has no token, and the product
// adds nothing to them: its row of dhidden is 0.
template <class R>
struct BackwardStep {
  RecurrentSpec s;
  const R *saved, *y, *h0, *c0, *dy;
  R *dgates, *dhidden, *dhidden_kept, *previous, *dh, *dc;
};

template <class Cell, class R>
__global__ void recurrent_bwd_kernel(BackwardStep<R> b, std::int64_t t) {
  const RecurrentSpec& s = b.s;
  const std::int64_t row = blockIdx.x, i = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const std::int64_t token = s.all.begin(row) + t, H = s.units, G = s.gates(), S = s.saved();
  if (i >= H) return;
  if (token >= s.all.end(row)) {
    for (int j = 0; j < Cell::kGates; ++j) b.dhidden[row * G + j * H + i] = R(0);
    return;
  }
  Cell::backward(RecurrentStepBwd<R>{.saved = b.saved + token * S,
                                     .h = t > 0 ? b.y + (token - 1) * H : row_at(b.h0, row * H),
                                     .c = t > 0 ? b.saved + token * S - H : row_at(b.c0, row * H),
                                     .dy = row_at(b.dy, token * H),
                                     .dh = b.dh + row * H,
                                     .dc = row_at(b.dc, row * H),
                                     .dgates = b.dgates + token * G,
                                     .dhidden = b.dhidden + row * G,
                                     .dhidden_kept = row_at(b.dhidden_kept, token * G),
                                     .previous = b.previous + token * H,
                                     .n = H},
                 i, 1);
}

// state (sequences, H) = initial, or zeros.
template <class R>
void set_state(const Tensor& initial, const Tensor& state) {
  if (!state.defined()) return;
  launch(recurrent_state_kernel<R>, grid_of(blocks_for(state.numel(), kThreads)), kThreads, 0,
         state.numel(), data_or_null<R>(initial), state.data<R>());
}

template <class R>
void forward(const RecurrentFwdIn& in, const RecurrentSpec& s, const RecurrentFwdOut& out) {
  const Forward<R> f{.s = s,
                     .gates = in.gates.data<R>(),
                     .hidden = out.scratch.data<R>(),
                     .bias = data_or_null<R>(in.bias),
                     .h = out.h.data<R>(),
                     .c = data_or_null<R>(out.c),
                     .saved = data_or_null<R>(out.saved),
                     .y = out.y.data<R>()};
  set_state<R>(in.h, out.h);
  set_state<R>(in.c, out.c);
  GemmShape product;
  product.m = s.all.count;
  product.n = product.ldc = s.gates();
  product.k = product.lda = product.ldb = s.units;
  product.trans_b = true;
  for (std::int64_t t = 0; t < s.steps; ++t) {
    gemm(out.h, in.weight, product, Tensor(), out.scratch);
    dispatch_cell<R>(s.kind, [&]<class Cell>() {
      launch(recurrent_fwd_kernel<Cell, R>, grid_of(s.all.count, blocks_for(s.units, kThreads)),
             kThreads, 0, f, t);
    });
  }
}

template <class R>
void backward(const RecurrentBwdIn& in, const RecurrentSpec& s, const RecurrentBwdOut& out) {
  const BackwardStep<R> b{.s = s,
                          .saved = in.saved.data<R>(),
                          .y = in.y.data<R>(),
                          .h0 = data_or_null<R>(in.h),
                          .c0 = data_or_null<R>(in.c),
                          .dy = data_or_null<R>(in.dy),
                          .dgates = out.dgates.data<R>(),
                          .dhidden = out.scratch.data<R>(),
                          .dhidden_kept = data_or_null<R>(out.dhidden),
                          .previous = out.previous.data<R>(),
                          .dh = out.dh.data<R>(),
                          .dc = data_or_null<R>(out.dc)};
  set_state<R>(in.dh, out.dh);
  set_state<R>(in.dc, out.dc);
  GemmShape product;
  product.m = s.all.count;
  product.n = product.ldb = product.ldc = s.units;
  product.k = product.lda = s.gates();
  product.accumulate = true;
  for (std::int64_t t = s.steps - 1; t >= 0; --t) {
    dispatch_cell<R>(s.kind, [&]<class Cell>() {
      launch(recurrent_bwd_kernel<Cell, R>, grid_of(s.all.count, blocks_for(s.units, kThreads)),
             kThreads, 0, b, t);
    });
    gemm(out.scratch, in.weight, product, Tensor(), out.dh);
  }
}

}  // namespace

void recurrent_fwd(const RecurrentFwdIn& in, const RecurrentSpec& s, const RecurrentFwdOut& out) {
  in.gates.dtype() == DType::f64 ? forward<double>(in, s, out) : forward<float>(in, s, out);
}

void recurrent_bwd(const RecurrentBwdIn& in, const RecurrentSpec& s, const RecurrentBwdOut& out) {
  in.weight.dtype() == DType::f64 ? backward<double>(in, s, out) : backward<float>(in, s, out);
}

}  // namespace weft::cuda
