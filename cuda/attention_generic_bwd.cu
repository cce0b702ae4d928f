#include "weft/cuda/attention_generic.h"

namespace weft::cuda::generic {
namespace {

template <class T, int Chunks>
__global__ void __launch_bounds__(kThreads, 1)
    attention_generic_dq_kernel(AttentionArgs a, const T* q, const T* k, const T* v, const T* dy,
                                const Real<T>* scratch, T* dq) {
  using R = Real<T>;
  WEFT_SHARED(s, Shared<R>);
  const TileOfHead at((a.queries + kTile - 1) / kTile, a.heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int mine = static_cast<int>(threadIdx.x) / kWarp * kRows;
  const int first = at.tile * kTile, n = least(kTile, a.queries - first), d = a.head_dim;
  const int w = a.value_dim;
  const int kv = at.head / a.share();
  const std::int64_t query = std::int64_t{at.batch} * a.queries + first;
  const std::int64_t out = (query * a.heads + at.head) * w, distance = std::int64_t{a.heads} * w;
  const Tokens<T> queries{q + query * a.ldq + at.head * d, a.ldq, n};
  const Tokens<T> grads{dy + out, distance, n};
  const R* pairs = row_pairs(scratch, a, at.batch, at.head) + 2 * (first + mine);
  const int begin = a.keys_of(first).begin, end = a.keys_of(first + n - 1).end;
  Range seen[kRows];
  R sums[Chunks][kRows][2] = {};
  for (int i = 0; i < kRows; ++i)
    seen[i] = mine + i < n ? a.keys_of(first + mine + i) : Range{0, 0};

  for (int from = begin; from < end; from += kTile) {
    const int m = least(kTile, end - from), key = from + lane;
    const std::int64_t token = std::int64_t{at.batch} * a.keys + from;
    const Tokens<T> keys{k + token * a.ldk + kv * d, a.ldk, m};
    R x[kRows], dp[kRows];
    dot_products(x, queries, keys, d, s);
    dot_products(dp, grads, Tokens<T>{v + token * a.ldv + kv * w, a.ldv, m}, w, s);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      R ds = 0;
      if (seen[i].contains(key)) {
        const R p = exp_of(x[i] * static_cast<R>(a.scale) - pairs[2 * i]);
        if (a.drop_below != 0)
          dp[i] *=
              a.drops(at.batch, at.head, first + mine + i, key) ? R(0) : static_cast<R>(a.kept);
        ds = p * (dp[i] - pairs[2 * i + 1]);
      }
      s.weights[mine + i][lane] = ds;
    }
    __syncwarp();
    add_products(sums, keys, d, s);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (mine + i < n)
      store(dq + ((query + mine + i) * a.dq_heads + at.head) * d, sums, i, static_cast<R>(a.scale),
            d);
}

// Rows are keys here and columns queries: loops over all query heads of the key head.
template <class T, int Chunks>
__global__ void __launch_bounds__(kThreads, 1)
    attention_generic_dkdv_kernel(AttentionArgs a, const T* q, const T* k, const T* v, const T* dy,
                                  const Real<T>* scratch, T* dk, T* dv) {
  using R = Real<T>;
  WEFT_SHARED(s, Shared<R>);
  const TileOfHead at((a.keys + kTile - 1) / kTile, a.kv_heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int mine = static_cast<int>(threadIdx.x) / kWarp * kRows;
  const int first = at.tile * kTile, n = least(kTile, a.keys - first), d = a.head_dim;
  const int w = a.value_dim;
  const std::int64_t token = std::int64_t{at.batch} * a.keys + first;
  const Tokens<T> keys{k + token * a.ldk + at.head * d, a.ldk, n};
  const Tokens<T> values{v + token * a.ldv + at.head * w, a.ldv, n};
  const int begin = a.queries_of(first).begin, end = a.queries_of(first + n - 1).end;
  Range seen[kRows];
  R sum_k[Chunks][kRows][2] = {}, sum_v[Chunks][kRows][2] = {};
  for (int i = 0; i < kRows; ++i)
    seen[i] = mine + i < n ? a.queries_of(first + mine + i) : Range{0, 0};

  for (int head = at.head * a.share(); head < (at.head + 1) * a.share(); ++head) {
    const R* const pairs = row_pairs(scratch, a, at.batch, head);
    for (int from = begin; from < end; from += kTile) {
      const int m = least(kTile, end - from), query = from + lane;
      const std::int64_t row = std::int64_t{at.batch} * a.queries + from;
      const Tokens<T> queries{q + row * a.ldq + head * d, a.ldq, m};
      const Tokens<T> grads{dy + (row * a.heads + head) * w, std::int64_t{a.heads} * w, m};
      R x[kRows], ds[kRows];
      dot_products(x, keys, queries, d, s);
      dot_products(ds, values, grads, w, s);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        R p = 0, factor = 1;
        if (seen[i].contains(query)) {
          p = exp_of(x[i] * static_cast<R>(a.scale) - pairs[2 * query]);
          if (a.drop_below != 0)
            factor =
                a.drops(at.batch, head, query, first + mine + i) ? R(0) : static_cast<R>(a.kept);
          ds[i] = p * (ds[i] * factor - pairs[2 * query + 1]);
        } else {
          ds[i] = 0;
        }
        s.weights[mine + i][lane] = p * factor;
      }
      __syncwarp();
      add_products(sum_v, grads, w, s);
      for (int i = 0; i < kRows; ++i) s.weights[mine + i][lane] = ds[i];
      __syncwarp();
      add_products(sum_k, queries, d, s);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (mine + i >= n) continue;
    const std::int64_t out = (token + mine + i) * a.dkv_heads + at.head;
    store(dk + out * d, sum_k, i, static_cast<R>(a.scale), d);
    store(dv + out * w, sum_v, i, R(1), w);
  }
}

}  // namespace

void attention_bwd(const AttentionIn& in, const AttentionSpec& spec, const Tensor& grad,
                   const AttentionGrads& out) {
  const AttentionArgs a = attention_args(in, spec, out);
  dispatch_heads(in.q.dtype(), spec, [&]<class T, int Chunks>() {
    const T *q = in.q.data<T>(), *k = in.k.data<T>(), *v = in.v.data<T>(), *dy = grad.data<T>();
    const Real<T>* pairs = out.scratch.data<Real<T>>();
    launch(attention_generic_dq_kernel<T, Chunks>,
           tiles_of_heads(spec.queries, spec.heads, spec.batch), dim3(kThreads), 0, a, q, k, v, dy,
           pairs, out.dq.data<T>());
    launch(attention_generic_dkdv_kernel<T, Chunks>,
           tiles_of_heads(spec.keys, spec.kv_heads, spec.batch), dim3(kThreads), 0, a, q, k, v, dy,
           pairs, out.dk.data<T>(), out.dv.data<T>());
  });
}

}  // namespace weft::cuda::generic
