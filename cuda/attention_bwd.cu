#include <limits>

#include "weft/cuda/attention_tile.h"

namespace weft::cuda {
namespace {

constexpr int kRowThreads = 128;

// Fills the scratch, see row_pairs(): `Lanes` threads a row, which read N elements at a time.
template <class T, int Lanes, int N>
__global__ void __launch_bounds__(kRowThreads)
    attention_rows_kernel(AttentionArgs a, std::int64_t padded_rows, const T* y, const T* dy,
                          const Real<T>* lse, Real<T> unit, Real<T>* scratch) {
  using R = Real<T>;
  const int padded = a.padded_queries();
  const std::int64_t at =
      (std::int64_t{blockIdx.x} * kRowThreads + static_cast<int>(threadIdx.x)) / Lanes;
  const std::int64_t of_head = at / padded;  // b * H + h
  const int i = static_cast<int>(at % padded), lane = static_cast<int>(threadIdx.x) % Lanes;
  const bool real = at < padded_rows && i < a.queries;
  R sum = 0;
  if (real) {
    const std::int64_t batch = of_head / a.heads, head = of_head % a.heads;
    const std::int64_t from = ((batch * a.queries + i) * a.heads + head) * a.value_dim;
    for (int d = lane * N; d < a.value_dim; d += Lanes * N) {
      const Pack<T, N> u = load_pack<T, N>(y + from + d), w = load_pack<T, N>(dy + from + d);
      for (int j = 0; j < N; ++j) sum += widen(u[j]) * widen(w[j]);
    }
  }
  sum = warp_reduce<Lanes>(sum, Sum{});
  if (at < padded_rows && lane == 0) {
    constexpr R kInf = std::numeric_limits<R>::infinity();
    const R level = real ? lse[of_head * a.queries + i] : -kInf;
    scratch[2 * at] = level == -kInf ? kInf : level * unit;
    scratch[2 * at + 1] = sum;
  }
}

template <class T, int Lanes, int N>
void fill_scratch(const AttentionArgs& a, const AttentionOut& forward, const Tensor& dy,
                  Real<T> unit, const Tensor& scratch) {
  const std::int64_t rows = scratch.numel() / 2;
  launch(attention_rows_kernel<T, Lanes, N>, grid_of(blocks_for(rows * Lanes, kRowThreads)),
         dim3(kRowThreads), 0, a, rows, forward.y.data<T>(), dy.data<T>(),
         forward.lse.data<Real<T>>(), unit, scratch.data<Real<T>>());
}

}  // namespace

AttentionArgs attention_args(const AttentionIn& in, const AttentionSpec& spec,
                             const AttentionGrads& out) {
  AttentionArgs a = attention_args(in, spec);
  a.dq_heads = static_cast<int>(token_distance(out.dq) / spec.head_dim);
  a.dkv_heads = static_cast<int>(token_distance(out.dk) / spec.head_dim);
  return a;
}

void attention_bwd(const AttentionIn& in, const AttentionSpec& spec, const AttentionOut& forward,
                   const Tensor& dy, const AttentionGrads& out) {
  const AttentionArgs a = attention_args(in, spec, out);
  if (fits_tiles(in.q, in.k, in.v) && fits_tiles(out.dq, out.dk, out.dv) &&
      aligned_tokens(forward.y) && aligned_tokens(dy)) {
    const auto fill = [&]<class T>() {
      (spec.head_dim == 64 ? fill_scratch<T, 8, 8> : fill_scratch<T, 16, 8>)(a, forward, dy, kLog2E,
                                                                             out.scratch);
    };
    in.q.dtype() == DType::bf16 ? fill.template operator()<bf16>()
                                : fill.template operator()<f16>();
    attention_dq(a, in, spec, dy, out);
    attention_dkdv(a, in, spec, dy, out);
  } else {
    dispatch_floating(in.q.dtype(), [&]<class T>() {
      fill_scratch<T, kWarp, 1>(a, forward, dy, Real<T>(1), out.scratch);
    });
    generic::attention_bwd(in, spec, dy, out);
  }
}

}  // namespace weft::cuda
