#include "weft/core/kernels/causal_conv1d.h"

#include <cmath>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// One token in f64: the reference for the row kernels. Tap d reads the token at x + d * step
// and the weight at w - d * n.
double sum_of_taps(const double* x, std::int64_t step, const double* w, std::int64_t taps,
                   std::int64_t n) {
  double sum = 0;
  for (std::int64_t d = 0; d < taps; ++d) sum += x[d * step] * w[-d * n];
  return sum;
}

struct Rows64 {
  static void forward(const double* x, std::int64_t step, const double* w, std::int64_t taps,
                      bool silu, double* y, std::int64_t n) {
    for (std::int64_t c = 0; c < n; ++c) {
      const double sum = sum_of_taps(x + c, step, w + c, taps, n);
      y[c] = silu ? sum / (1 + std::exp(-sum)) : sum;
    }
  }
  static void backward(const double* x, std::int64_t step, const double* w, std::int64_t taps,
                       bool silu, const double* dy, double* dpre, double* dw, std::int64_t n) {
    for (std::int64_t c = 0; c < n; ++c) {
      dpre[c] = dy[c];
      if (silu) {
        const double sum = sum_of_taps(x + c, step, w + c, taps, n), s = 1 / (1 + std::exp(-sum));
        dpre[c] *= s * (1 + sum * (1 - s));
      }
      for (std::int64_t d = 0; dw && d < taps; ++d) dw[c - d * n] += dpre[c] * x[c + d * step];
    }
  }
  static void input_grad(const double* dpre, std::int64_t step, const double* w, std::int64_t taps,
                         double* dx, std::int64_t n) {
    for (std::int64_t c = 0; c < n; ++c) dx[c] = sum_of_taps(dpre + c, step, w + c, taps, n);
  }
};

// The row functions for one token in the arithmetic of T.
template <class T>
struct Rows {
  decltype(simd().of<T>().conv) forward = simd().of<T>().conv;
  decltype(simd().of<T>().conv_bwd) backward = simd().of<T>().conv_bwd;
  decltype(simd().of<T>().conv_input_grad) input_grad = simd().of<T>().conv_input_grad;
};
template <>
struct Rows<double> : Rows64 {};

// Calls body(token, begin of its sequence, end of its sequence).
template <class F>
void each_token(const Sequences& all, std::int64_t begin, std::int64_t end, F body) {
  for (std::int64_t t = begin; t < end;) {
    const std::int64_t i = all.of(t), first = all.begin(i), stop = all.end(i);
    for (; t < std::min(end, stop); ++t) body(t, first, stop);
  }
}

}  // namespace

void causal_conv1d_fwd(const Tensor& x, const Tensor& taps, const Tensor& cu_seqlens, bool silu,
                       const Tensor& y) {
  if (y.numel() == 0) return;
  const std::int64_t C = x.dim(2), K = taps.dim(0), tokens = x.dim(0) * x.dim(1);
  const Sequences all = conv_sequences(x, cu_seqlens);
  dispatch_floating(x.dtype(), [&]<class T>() {
    const T* px = x.data<T>();
    const Real<T>* last = taps.data<Real<T>>() + (K - 1) * C;
    T* py = y.data<T>();
    parallel_for(tokens, C * (K + 24 * silu), [=](std::int64_t begin, std::int64_t end) {
      const Rows<T> rows;
      each_token(all, begin, end, [&](std::int64_t t, std::int64_t first, std::int64_t) {
        rows.forward(px + t * C, -C, last, std::min(K, t - first + 1), silu, py + t * C, C);
      });
    });
  });
}

void causal_conv1d_bwd(const CausalConv1dBwdIn& in, const CausalConv1dBwdOut& out) {
  const std::int64_t C = in.x.dim(2), K = in.taps.dim(0), tokens = in.x.dim(0) * in.x.dim(1);
  const std::int64_t chunks = conv_chunks(tokens);
  const Sequences all = conv_sequences(in.x, in.cu_seqlens);
  const bool silu = in.silu;
  dispatch_floating(in.x.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T *x = in.x.data<T>(), *dy = in.dy.data<T>();
    const R* last = in.taps.data<R>() + (K - 1) * C;
    R *dpre = out.dpre.data<R>(), *partials = data_or_null<R>(out.partials);
    T* dx = out.dx.data<T>();
    parallel_for(chunks, (tokens / chunks + 1) * C * (2 * K + 24),
                 [=](std::int64_t begin, std::int64_t end) {
                   const Rows<T> rows;
                   for (std::int64_t k = begin; k < end; ++k) {
                     R* sums = row_or_null(partials, k * K * C);
                     if (sums) std::fill_n(sums, K * C, R(0));
                     each_token(all, tokens * k / chunks, tokens * (k + 1) / chunks,
                                [&](std::int64_t t, std::int64_t first, std::int64_t) {
                                  rows.backward(x + t * C, -C, last, std::min(K, t - first + 1),
                                                silu, dy + t * C, dpre + t * C,
                                                row_or_null(sums, (K - 1) * C), C);
                                });
                   }
                 });
    parallel_for(tokens, C * K, [=](std::int64_t begin, std::int64_t end) {
      const Rows<T> rows;
      each_token(all, begin, end, [&](std::int64_t t, std::int64_t, std::int64_t stop) {
        rows.input_grad(dpre + t * C, C, last, std::min(K, stop - t), dx + t * C, C);
      });
    });
    if (!out.dtaps.defined()) return;
    R* dtaps = out.dtaps.data<R>();
    parallel_for(K * C, chunks, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        R total = 0;
        for (std::int64_t k = 0; k < chunks; ++k) total += partials[k * K * C + i];
        dtaps[i] = total;
      }
    });
  });
}

}  // namespace weft::cpu
