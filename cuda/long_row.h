#pragma once
// Rows too long for the registers of a block. Rows may start and end anywhere: single elements up
// to the first 16-byte boundary, then packs, then single elements.
#include <algorithm>
#include <limits>

#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {

/// Where the packs of a row of n elements begin, and their number. None unless all rows have the
/// same offset from a boundary.
struct RowParts {
  std::int64_t head, packs, tail;  ///< tail: the first element after the packs

  template <class T, class... O>
  __device__ RowParts(std::int64_t n, const T* x, const O*... others) {
    const auto address = reinterpret_cast<std::uintptr_t>(x);
    const auto gap =
        static_cast<std::int64_t>(-address % 16) / static_cast<std::int64_t>(sizeof(T));
    const bool alike = ((sizeof(O) == sizeof(T) &&
                         (reinterpret_cast<std::uintptr_t>(others) - address) % 16 == 0) &&
                        ... && true);
    head = alike && gap < n ? gap : n;
    packs = (n - head) / Pack<T>::kCount;
    tail = head + packs * Pack<T>::kCount;
  }
};

/// Calls f(first, packs...) for this thread's part of the n elements at in..., with one pack of
/// each, or with packs of one element.
template <int Threads, class F, class... I>
__device__ inline void each_pack(const RowParts& parts, std::int64_t n, F&& f, const I*... in) {
  constexpr int kCount = std::max({Pack<I>::kCount...});
  const auto single = [&](std::int64_t i) { f(i, load_pack<I, 1>(in + i)...); };
  for (std::int64_t i = threadIdx.x; i < parts.head; i += Threads) single(i);
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < parts.packs; i += Threads) {
    const std::int64_t at = parts.head + i * kCount;
    f(at, load_pack(in + at)...);
  }
  if (const std::int64_t i = parts.tail + threadIdx.x; i < n) single(i);
}

/// Maximum m and sum of exp(x - m) of the values added so far, in one pass.
template <class R>
struct ExpSum {
  R max = -std::numeric_limits<R>::infinity();
  R sum = 0;

  template <int N>
  __device__ void add(const R (&v)[N]) {
    R top = max;
#pragma unroll
    for (int k = 0; k < N; ++k) top = larger(top, v[k]);
    // While everything is -inf there is no mass to add, and -inf - -inf would be NaN.
    const R shift = top == -std::numeric_limits<R>::infinity() ? R(0) : top;
    if (top != max) sum *= fast_exp(max - top);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += fast_exp(v[k] - shift);
    max = top;
  }
  /// Merges the values of a block's threads (of a warp's lanes); all receive the result.
  template <int Threads>
  __device__ void join(R* shared) {
    const R top = block_reduce<Threads>(max, shared, -std::numeric_limits<R>::infinity(), Max{});
    if (top != max) sum *= fast_exp(max - top);
    sum = block_reduce<Threads>(sum, shared, R(0), Sum{});
    max = top;
  }
};

/// Reads this thread's part of a row. Calls see(i, pack) with each pack and its index, and
/// plain(value) with each element.
template <int Threads, class T, class See, class Plain>
__device__ inline ExpSum<Real<T>> exp_sum(const T* x, std::int64_t n, See&& see, Plain&& plain) {
  using R = Real<T>;
  using P = Pack<T>;
  constexpr int kUnroll = 4;  // loads in flight
  const RowParts parts(n, x);
  ExpSum<R> s;
  const auto single = [&](std::int64_t i) {
    const R v[1] = {widen(x[i])};
    s.add(v);
    plain(v);
  };
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < parts.head) single(thread);
  if (const std::int64_t i = parts.tail + thread; i < n) single(i);
  const T* body = x + parts.head;
  std::int64_t i = thread;
  const auto packs = [&]<int N>(std::integral_constant<int, N>) {
    P p[N];
    R v[N * P::kCount];
#pragma unroll
    for (int u = 0; u < N; ++u) p[u] = load_pack(body + (i + u * Threads) * P::kCount);
#pragma unroll
    for (int u = 0; u < N; ++u) {
      see(i + u * Threads, p[u]);
#pragma unroll
      for (int k = 0; k < P::kCount; ++k) v[u * P::kCount + k] = widen(p[u][k]);
    }
    s.add(v);
    plain(v);
  };
  for (; i + (kUnroll - 1) * Threads < parts.packs; i += kUnroll * Threads)
    packs(std::integral_constant<int, kUnroll>{});
  for (; i < parts.packs; i += Threads) packs(std::integral_constant<int, 1>{});
  return s;
}

}  // namespace weft::cuda
