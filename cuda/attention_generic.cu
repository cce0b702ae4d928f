#include <limits>

#include "weft/cuda/attention_generic.h"

namespace weft::cuda::generic {
namespace {

template <class T, int Chunks>
__global__ void __launch_bounds__(kThreads, 1)
    attention_generic_fwd_kernel(AttentionArgs a, const T* q, const T* k, const T* v, T* y,
                                 Real<T>* lse) {
  using R = Real<T>;
  constexpr R kInf = std::numeric_limits<R>::infinity();
  WEFT_SHARED(s, Shared<R>);
  const TileOfHead at((a.queries + kTile - 1) / kTile, a.heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int mine = static_cast<int>(threadIdx.x) / kWarp * kRows;
  const int first = at.tile * kTile, n = least(kTile, a.queries - first), d = a.head_dim;
  const int w = a.value_dim;
  const int kv = at.head / a.share();
  const std::int64_t query = std::int64_t{at.batch} * a.queries + first;
  const Tokens<T> queries{q + query * a.ldq + at.head * d, a.ldq, n};
  const int begin = a.keys_of(first).begin, end = a.keys_of(first + n - 1).end;
  Range seen[kRows];
  R high[kRows], sum[kRows], sums[Chunks][kRows][2] = {};
  for (int i = 0; i < kRows; ++i) {
    seen[i] = mine + i < n ? a.keys_of(first + mine + i) : Range{0, 0};
    high[i] = -kInf;
    sum[i] = 0;
  }

  for (int from = begin; from < end; from += kTile) {
    const int m = least(kTile, end - from), key = from + lane;
    const std::int64_t token = std::int64_t{at.batch} * a.keys + from;
    R x[kRows];
    dot_products(x, queries, Tokens<T>{k + token * a.ldk + kv * d, a.ldk, m}, d, s);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const R score = seen[i].contains(key) ? x[i] * static_cast<R>(a.scale) : -kInf;
      const R top = Max{}(high[i], warp_max(score));
      const R shift = top == -kInf ? R(0) : top;
      R p = exp_of(score - shift);
      const R shrink = exp_of(high[i] - shift);
      high[i] = top;
      sum[i] = sum[i] * shrink + warp_sum(p);
      if (a.drop_below != 0 && p != 0)
        p *= a.drops(at.batch, at.head, first + mine + i, key) ? R(0) : static_cast<R>(a.kept);
      s.weights[mine + i][lane] = p;
      for (int c = 0; c < Chunks; ++c)
        for (int h = 0; h < 2; ++h) sums[c][i][h] *= shrink;
    }
    __syncwarp();
    add_products(sums, Tokens<T>{v + token * a.ldv + kv * w, a.ldv, m}, w, s);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (mine + i >= n) continue;
    const int row = mine + i;
    store(y + ((query + row) * a.heads + at.head) * w, sums, i, sum[i] == 0 ? R(0) : 1 / sum[i], w);
    if (lane == 0)
      lse[a.row(at.batch, at.head, first + row)] = sum[i] == 0 ? -kInf : high[i] + log_of(sum[i]);
  }
}

}  // namespace

void attention_fwd(const AttentionIn& in, const AttentionSpec& spec, const AttentionOut& out) {
  const AttentionArgs a = attention_args(in, spec);
  dispatch_heads(in.q.dtype(), spec, [&]<class T, int Chunks>() {
    launch(attention_generic_fwd_kernel<T, Chunks>,
           tiles_of_heads(spec.queries, spec.heads, spec.batch), dim3(kThreads), 0, a,
           in.q.data<T>(), in.k.data<T>(), in.v.data<T>(), out.y.data<T>(),
           out.lse.data<Real<T>>());
  });
}

}  // namespace weft::cuda::generic
