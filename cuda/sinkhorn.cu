// One block runs all rounds, so that the host need not check for convergence. Warp w owns rows w, w
// + 32, ...; the 32 partial sums of each column are added in order.
#include "weft/core/kernels/sinkhorn.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
static_assert(kWarps == kSinkhornParts);

template <class T, class R>
__global__ void __launch_bounds__(kThreads)
    sinkhorn_kernel(const T* logits, const bool* padding, std::int64_t tokens, int E,
                    std::int64_t rounds, R* d0, R* d1, R* partials, R* c) {
  WEFT_SHARED(shared, R[kWarp]);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  R counted = 0;
  for (std::int64_t t = warp; t < tokens; t += kWarps) {
    const bool skip = padding && padding[t];
    R top = -std::numeric_limits<R>::infinity();
    for (int e = lane; e < E; e += kWarp) top = Max{}(widen(logits[t * E + e]), top);
    top = warp_max(top);
    for (int e = lane; e < E; e += kWarp)
      c[t * E + e] = skip ? R(0) : exp_of(widen(logits[t * E + e]) - top);
    if (lane == 0 && !skip) counted += 1;
  }
  counted = block_reduce<kThreads>(counted, shared, R(0), Sum{});
  const R row_sum = 1 / (counted > 0 ? counted : R(1)), column_sum = R(1) / static_cast<R>(E);
  const R eps = static_cast<R>(kSinkhornEps);

  for (int e = thread; e < E; e += kThreads) d1[e] = 1;
  R* sums = partials + std::int64_t{warp} * E;
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int e = lane; e < E; e += kWarp) sums[e] = 0;
    __syncthreads();
    for (std::int64_t t = warp; t < tokens; t += kWarps) {
      R dot = 0;
      for (int e = lane; e < E; e += kWarp) dot += c[t * E + e] * d1[e];
      const R factor = row_sum / (warp_sum(dot) + eps);
      if (lane == 0) d0[t] = factor;
      for (int e = lane; e < E; e += kWarp) sums[e] += c[t * E + e] * factor;
    }
    __syncthreads();
    R change = 0;
    for (int e = thread; e < E; e += kThreads) {
      R sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += partials[std::int64_t{w} * E + e];
      const R next = column_sum / (sum + eps), moved = next - d1[e];
      change += moved < 0 ? -moved : moved;
      d1[e] = next;
    }
    change = block_reduce<kThreads>(change, shared, R(0), Sum{});
    if (!(change / static_cast<R>(E) > static_cast<R>(kSinkhornTolerance))) break;
  }
  __syncthreads();
  for (std::int64_t t = warp; t < tokens; t += kWarps)
    for (int e = lane; e < E; e += kWarp) c[t * E + e] *= d0[t] * d1[e];
}

}  // namespace

void sinkhorn(const Tensor& logits, const Tensor& padding, std::int64_t rounds, const Tensor& rows,
              const Tensor& columns, const Tensor& partials, const Tensor& out) {
  if (logits.numel() == 0) return;
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    launch(sinkhorn_kernel<T, R>, dim3(1), kThreads, 0, logits.data<T>(),
           data_or_null<bool>(padding), logits.dim(0), static_cast<int>(logits.dim(1)), rounds,
           rows.data<R>(), columns.data<R>(), partials.data<R>(), out.data<R>());
  });
}

}  // namespace weft::cuda
