#include "weft/core/kernels/causal_conv1d.h"
#include "weft/cuda/math.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 128;  // channels per block
constexpr int kTokens = 32;    // tokens that one thread processes along its channel
constexpr int kTaps = static_cast<int>(kConvTaps);

struct Sizes {
  Sequences all;
  std::int64_t tokens, channels;
  int taps;
  bool silu;
};

// The sum over the taps of one channel at token t; `reach` of the taps lie inside the sequence.
// Step: -1 looks back in time, 1 forward.
template <int Step, class T, class R>
__device__ R sum_of_taps(const Sizes& s, const T* x, const R* w, std::int64_t at,
                         std::int64_t reach) {
  R sum = 0;
#pragma unroll
  for (int d = 0; d < kTaps; ++d)
    if (d < s.taps && d < reach) sum += w[d] * widen(x[at + Step * d * s.channels]);
  return sum;
}

// w[d] is the tap at distance d tokens.
template <class R>
__device__ void load_taps(const Sizes& s, const R* taps, std::int64_t c, R (&w)[kTaps]) {
#pragma unroll
  for (int d = 0; d < kTaps; ++d)
    w[d] = d < s.taps ? taps[(s.taps - 1 - d) * s.channels + c] : R(0);
}

// Calls body(token, begin of its sequence, end of its sequence).
template <class F>
__device__ void each_token(const Sequences& all, std::int64_t begin, std::int64_t end, F body) {
  std::int64_t first = 0, stop = 0;
  for (std::int64_t t = begin; t < end; ++t) {
    if (t >= stop) {
      const std::int64_t i = all.of(t);
      first = all.begin(i);
      stop = all.end(i);
    }
    body(t, first, stop);
  }
}

template <class T, class R>
__global__ void causal_conv1d_fwd_kernel(Sizes s, const T* x, const R* taps, T* y) {
  const std::int64_t c = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const std::int64_t begin = std::int64_t{blockIdx.x} * kTokens;
  const std::int64_t end = begin + kTokens < s.tokens ? begin + kTokens : s.tokens;
  if (c >= s.channels) return;
  R w[kTaps];
  load_taps(s, taps, c, w);
  each_token(s.all, begin, end, [&](std::int64_t t, std::int64_t first, std::int64_t) {
    const std::int64_t at = t * s.channels + c;
    const R sum = sum_of_taps<-1>(s, x, w, at, t - first + 1);
    y[at] = narrow<T>(s.silu ? sum * fast_sigmoid(sum) : sum);
  });
}

// Each block processes one chunk of tokens and writes its own partial sum for the taps.
template <class T, class R>
__global__ void causal_conv1d_bwd_kernel(Sizes s, std::int64_t chunks, const T* x, const R* taps,
                                         const T* dy, R* dpre, R* partials) {
  const std::int64_t c = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const std::int64_t k = blockIdx.x;
  if (c >= s.channels) return;
  R w[kTaps], dw[kTaps] = {};
  load_taps(s, taps, c, w);
  each_token(s.all, s.tokens * k / chunks, s.tokens * (k + 1) / chunks,
             [&](std::int64_t t, std::int64_t first, std::int64_t) {
               const std::int64_t at = t * s.channels + c;
               R d = widen(dy[at]);
               if (s.silu) {
                 const R sum = sum_of_taps<-1>(s, x, w, at, t - first + 1);
                 const R gate = fast_sigmoid(sum);
                 d *= gate * (1 + sum * (1 - gate));
               }
               dpre[at] = d;
#pragma unroll
               for (int j = 0; j < kTaps; ++j)
                 if (j < s.taps && j <= t - first) dw[j] += d * widen(x[at - j * s.channels]);
             });
  if (!partials) return;
#pragma unroll
  for (int j = 0; j < kTaps; ++j)
    if (j < s.taps) partials[(k * s.taps + s.taps - 1 - j) * s.channels + c] = dw[j];
}

template <class T, class R>
__global__ void causal_conv1d_input_kernel(Sizes s, const R* dpre, const R* taps, T* dx) {
  const std::int64_t c = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const std::int64_t begin = std::int64_t{blockIdx.x} * kTokens;
  const std::int64_t end = begin + kTokens < s.tokens ? begin + kTokens : s.tokens;
  if (c >= s.channels) return;
  R w[kTaps];
  load_taps(s, taps, c, w);
  each_token(s.all, begin, end, [&](std::int64_t t, std::int64_t, std::int64_t stop) {
    const std::int64_t at = t * s.channels + c;
    dx[at] = narrow<T>(sum_of_taps<1>(s, dpre, w, at, stop - t));
  });
}

template <class R>
__global__ void causal_conv1d_taps_kernel(std::int64_t chunks, std::int64_t n, const R* partials,
                                          R* dtaps) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  R total = 0;
  for (std::int64_t k = 0; k < chunks; ++k) total += partials[k * n + i];
  dtaps[i] = total;
}

Sizes sizes_of(const Tensor& x, const Tensor& taps, const Tensor& cu_seqlens, bool silu) {
  return {conv_sequences(x, cu_seqlens), x.dim(0) * x.dim(1), x.dim(2),
          static_cast<int>(taps.dim(0)), silu};
}

}  // namespace

void causal_conv1d_fwd(const Tensor& x, const Tensor& taps, const Tensor& cu_seqlens, bool silu,
                       const Tensor& y) {
  if (y.numel() == 0) return;
  const Sizes s = sizes_of(x, taps, cu_seqlens, silu);
  const dim3 grid = grid_of(blocks_for(s.tokens, kTokens), blocks_for(s.channels, kThreads));
  dispatch_floating(x.dtype(), [&]<class T>() {
    launch(causal_conv1d_fwd_kernel<T, Real<T>>, grid, kThreads, 0, s, x.data<T>(),
           taps.data<Real<T>>(), y.data<T>());
  });
}

void causal_conv1d_bwd(const CausalConv1dBwdIn& in, const CausalConv1dBwdOut& out) {
  const Sizes s = sizes_of(in.x, in.taps, in.cu_seqlens, in.silu);
  const std::int64_t chunks = conv_chunks(s.tokens), columns = blocks_for(s.channels, kThreads);
  dispatch_floating(in.x.dtype(), [&]<class T>() {
    using R = Real<T>;
    const R* taps = in.taps.data<R>();
    R *dpre = out.dpre.data<R>(), *partials = data_or_null<R>(out.partials);
    launch(causal_conv1d_bwd_kernel<T, R>, grid_of(chunks, columns), kThreads, 0, s, chunks,
           in.x.data<T>(), taps, in.dy.data<T>(), dpre, partials);
    launch(causal_conv1d_input_kernel<T, R>, grid_of(blocks_for(s.tokens, kTokens), columns),
           kThreads, 0, s, dpre, taps, out.dx.data<T>());
    const std::int64_t n = in.taps.numel();
    if (out.dtaps.defined())
      launch(causal_conv1d_taps_kernel<R>, grid_of(blocks_for(n, kThreads)), kThreads, 0, chunks, n,
             partials, out.dtaps.data<R>());
  });
}

}  // namespace weft::cuda
