#pragma once
#include <cstdint>

namespace weft {

// One time step of one sequence, for the CPU's vectors, its f64 reference and CUDA alike. Gates and
// saved values of n units lie one after the other: (gates, n).

/// From the inputs of step t to its state. R is float or double.
template <class R>
struct RecurrentStep {
  const R* gates;   ///< the product with x
  const R* hidden;  ///< the product with the state
  const R* bias;    ///< added to hidden; null: none
  R *h, *c;         ///< the state before the step; replaced by the state after it
  R* saved;         ///< for the backward step; null: not stored
  R* y;             ///< gets h too
  std::int64_t n;
};

/// From the gradients after step t to those before it.
template <class R>
struct RecurrentStepBwd {
  const R* saved;
  const R *h, *c;  ///< the state before the step; null: zeros
  const R* dy;     ///< null: zeros
  /// On entry the gradient of the state after the step, without dy. On exit that of the state
  /// before it, without what comes through `hidden`.
  R *dh, *dc;
  R* dgates;
  R *dhidden, *dhidden_kept;  ///< the gradient of `hidden`; a null dhidden_kept is not stored
  R* previous;                ///< gets h
  std::int64_t n;
};

// M gives the vector type V, its number of lanes, read() and write() of the first `count` lanes,
// and the functions `one`, `sigmoid_of`, `tanh_of`. Each cell computes the units i ... i + count.

template <class M, class R>
constexpr typename M::V get_or_zero(const R* p, std::int64_t i, std::int64_t count) {
  return p ? M::read(p + i, count) : M::one() - M::one();
}

template <class M, class R>
constexpr typename M::V from_state(const RecurrentStep<R>& s, std::int64_t i, std::int64_t count) {
  const typename M::V product = M::read(s.hidden + i, count);
  return s.bias ? product + M::read(s.bias + i, count) : product;
}

/// Gates r, z, n. Saved: these and the candidate's product with the state.
template <class M>
struct GruCell {
  using V = typename M::V;
  static constexpr int kGates = 3, kSaved = 4;

  template <class R>
  static constexpr void forward(const RecurrentStep<R>& s, std::int64_t i, std::int64_t count) {
    const auto gate = [&](int j) { return M::read(s.gates + j * s.n + i, count); };
    const auto hidden = [&](int j) { return from_state<M>(s, j * s.n + i, count); };
    const V r = M::sigmoid_of(gate(0) + hidden(0)), z = M::sigmoid_of(gate(1) + hidden(1));
    const V product = hidden(2), n = M::tanh_of(gate(2) + r * product);
    const V h = (M::one() - z) * n + z * M::read(s.h + i, count);
    M::write(s.h + i, count, h);
    M::write(s.y + i, count, h);
    if (!s.saved) return;
    M::write(s.saved + i, count, r);
    M::write(s.saved + s.n + i, count, z);
    M::write(s.saved + 2 * s.n + i, count, n);
    M::write(s.saved + 3 * s.n + i, count, product);
  }

  template <class R>
  static constexpr void backward(const RecurrentStepBwd<R>& s, std::int64_t i, std::int64_t count) {
    const V one = M::one(), h = get_or_zero<M>(s.h, i, count);
    const V r = M::read(s.saved + i, count), z = M::read(s.saved + s.n + i, count);
    const V n = M::read(s.saved + 2 * s.n + i, count);
    const V product = M::read(s.saved + 3 * s.n + i, count);
    const V dh = M::read(s.dh + i, count) + get_or_zero<M>(s.dy, i, count);
    const V dn = dh * (one - z) * (one - n * n);
    const V dz = dh * (h - n) * z * (one - z), dr = dn * product * r * (one - r);
    const auto put = [&](R* p, V last) {
      if (!p) return;
      M::write(p + i, count, dr);
      M::write(p + s.n + i, count, dz);
      M::write(p + 2 * s.n + i, count, last);
    };
    put(s.dgates, dn);
    put(s.dhidden, dn * r);
    put(s.dhidden_kept, dn * r);
    M::write(s.dh + i, count, dh * z);
    M::write(s.previous + i, count, h);
  }
};

/// Gates i, f, g, o. Saved: these and the cell state after the step.
template <class M>
struct LstmCell {
  using V = typename M::V;
  static constexpr int kGates = 4, kSaved = 5;

  template <class R>
  static constexpr void forward(const RecurrentStep<R>& s, std::int64_t i, std::int64_t count) {
    const auto gate = [&](int j) {
      return M::read(s.gates + j * s.n + i, count) + from_state<M>(s, j * s.n + i, count);
    };
    const V in = M::sigmoid_of(gate(0)), forget = M::sigmoid_of(gate(1));
    const V g = M::tanh_of(gate(2)), out = M::sigmoid_of(gate(3));
    const V c = forget * M::read(s.c + i, count) + in * g, h = out * M::tanh_of(c);
    M::write(s.c + i, count, c);
    M::write(s.h + i, count, h);
    M::write(s.y + i, count, h);
    if (!s.saved) return;
    M::write(s.saved + i, count, in);
    M::write(s.saved + s.n + i, count, forget);
    M::write(s.saved + 2 * s.n + i, count, g);
    M::write(s.saved + 3 * s.n + i, count, out);
    M::write(s.saved + 4 * s.n + i, count, c);
  }

  template <class R>
  static constexpr void backward(const RecurrentStepBwd<R>& s, std::int64_t i, std::int64_t count) {
    const auto saved = [&](int j) { return M::read(s.saved + j * s.n + i, count); };
    const V one = M::one(), in = saved(0), forget = saved(1), g = saved(2), out = saved(3);
    const V t = M::tanh_of(saved(4)),
            dh = M::read(s.dh + i, count) + get_or_zero<M>(s.dy, i, count);
    const V dc = M::read(s.dc + i, count) + dh * out * (one - t * t);
    const V din = dc * g * in * (one - in), dg = dc * in * (one - g * g);
    const V dforget = dc * get_or_zero<M>(s.c, i, count) * forget * (one - forget);
    const V dout = dh * t * out * (one - out);
    const auto put = [&](R* p) {
      if (!p) return;
      M::write(p + i, count, din);
      M::write(p + s.n + i, count, dforget);
      M::write(p + 2 * s.n + i, count, dg);
      M::write(p + 3 * s.n + i, count, dout);
    };
    put(s.dgates);
    put(s.dhidden);
    put(s.dhidden_kept);
    M::write(s.dh + i, count, one - one);
    M::write(s.dc + i, count, dc * forget);
    M::write(s.previous + i, count, get_or_zero<M>(s.h, i, count));
  }
};

}  // namespace weft
