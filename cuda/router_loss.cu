// One warp per token; one block then sums the tokens.
#include "weft/core/kernels/router_loss.h"
#include "weft/cuda/router_rows.h"

namespace weft::cuda {
namespace {

constexpr int kSumThreads = 1024;
constexpr int kCountThreads = 256;
constexpr int kCountItems = 16;  // slots per thread

/// Replaces the logits of a row by scores and returns the sum by which they must be divided (1 for
/// softmax). The whole warp must call it.
template <class R>
__device__ inline R scores_of(RouterScore score, R* row, int E) {
  const int lane = static_cast<int>(threadIdx.x);
  R sum = 0;
  if (score == RouterScore::softmax) {
    R top;
    exp_sum_of(row, E, top, sum);
    for (int e = lane; e < E; e += kWarp) row[e] = exp_of(row[e] - top) / sum;
    return 1;
  }
  for (int e = lane; e < E; e += kWarp) {
    row[e] = router_score(score, row[e]);
    sum += row[e];
  }
  return warp_sum(sum) + static_cast<R>(kRouterEps);
}

/// E / sum(counts), or 0. The whole warp must call it.
__device__ inline double fraction_of(const std::int64_t* counts, int E) {
  std::int64_t total = 0;
  for (int e = static_cast<int>(threadIdx.x); e < E; e += kWarp) total += counts[e];
  total = static_cast<std::int64_t>(warp_sum(static_cast<long long>(total)));
  return total > 0 ? static_cast<double>(E) / static_cast<double>(total) : 0.0;
}

template <class R>
__device__ inline R scaled(std::int64_t count, double fraction) {
  return static_cast<R>(static_cast<double>(count) * fraction);
}

template <class T, class R>
__global__ void __launch_bounds__(kWarp* kTokensOfBlock)
    router_loss_terms_kernel(const T* logits, const std::int64_t* counts, const bool* padding,
                             RouterScore score, std::int64_t tokens, Sequences all, int E,
                             bool packed, R* terms) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kTokensOfBlock + threadIdx.y;
  if (t >= tokens) return;  // the whole warp exits
  R* row = dynamic_shared<R>() + threadIdx.y * E;
  const int lane = static_cast<int>(threadIdx.x);
  if (padding && padding[t]) {
    if (lane == 0) terms[t] = 0;
    return;
  }
  load_row(logits + t * E, E, packed, row);
  R term;
  if (counts) {
    const std::int64_t* c = counts + all.of(t) * E;
    const double fraction = fraction_of(c, E);
    const R sum = scores_of(score, row, E);
    R dot = 0;
    for (int e = lane; e < E; e += kWarp) dot += row[e] * scaled<R>(c[e], fraction);
    term = warp_sum(dot) / sum;
  } else {
    R top, sum;
    exp_sum_of(row, E, top, sum);
    const R z = top + log_of(sum);
    term = z * z;
  }
  if (lane == 0) terms[t] = term;
}

template <class R>
__global__ void __launch_bounds__(kSumThreads)
    router_loss_sum_kernel(const R* terms, const bool* padding, std::int64_t tokens,
                           double coefficient, R* loss, R* share) {
  WEFT_SHARED(sums, double[kWarp]);
  double total = 0, counted = 0;
  for (std::int64_t t = threadIdx.x; t < tokens; t += kSumThreads) {
    total += terms[t];
    counted += padding && padding[t] ? 0 : 1;
  }
  total = block_reduce<kSumThreads>(total, sums, 0.0, Sum{});
  counted = block_reduce<kSumThreads>(counted, sums, 0.0, Sum{});
  if (threadIdx.x == 0) {
    const double part = counted > 0 ? coefficient / counted : 0;
    *loss = static_cast<R>(total * part);
    *share = static_cast<R>(part);
  }
}

template <class T, class R>
__global__ void __launch_bounds__(kWarp* kTokensOfBlock)
    router_loss_bwd_kernel(const T* logits, const std::int64_t* counts, const bool* padding,
                           RouterScore score, const R* share, const R* dloss, std::int64_t tokens,
                           Sequences all, int E, bool packed, T* dlogits) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kTokensOfBlock + threadIdx.y;
  if (t >= tokens) return;  // the whole warp exits
  // Searched here, while few registers are in use.
  const int sequence = counts ? static_cast<int>(all.of(t)) : 0;
  R* row = dynamic_shared<R>() + threadIdx.y * E;
  const T* x = logits + t * E;
  const int lane = static_cast<int>(threadIdx.x);
  const R scale = *share * *dloss;
  if (padding && padding[t]) {
    for (int e = lane; e < E; e += kWarp) row[e] = 0;
  } else {
    load_row(x, E, packed, row);
    if (counts) {
      const std::int64_t* c = counts + std::int64_t{sequence} * E;
      const double fraction = fraction_of(c, E);
      const R sum = scores_of(score, row, E);
      R dot = 0;
      for (int e = lane; e < E; e += kWarp) dot += row[e] * scaled<R>(c[e], fraction);
      const R mean = warp_sum(dot) / sum;
      for (int e = lane; e < E; e += kWarp) {
        const R slope =
            score == RouterScore::softmax ? row[e] : router_slope(score, widen(x[e]), row[e]);
        row[e] = scale / sum * slope * (scaled<R>(c[e], fraction) - mean);
      }
    } else {
      R top, sum;
      exp_sum_of(row, E, top, sum);
      const R factor = 2 * scale * (top + log_of(sum)) / sum;
      for (int e = lane; e < E; e += kWarp) row[e] = exp_of(row[e] - top) * factor;
    }
  }
  __syncwarp();
  store_row(row, E, packed, dlogits + t * E);
}

__global__ void __launch_bounds__(kCountThreads)
    router_loss_count_kernel(const std::int64_t* experts, std::int64_t size, int E,
                             unsigned long long* counts) {
  WEFT_SHARED(found, int[kRouterExperts]);
  for (int e = static_cast<int>(threadIdx.x); e < E; e += kCountThreads) found[e] = 0;
  __syncthreads();
  const std::int64_t part = blockIdx.x;
  for (int i = 0; i < kCountItems; ++i) {
    const std::int64_t at =
        (std::int64_t{blockIdx.y} * kCountItems + i) * kCountThreads + threadIdx.x;
    if (at >= size) break;
    const std::int64_t e = experts[part * size + at];
    if (e >= 0 && e < E) atomicAdd(&found[e], 1);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < E; e += kCountThreads)
    if (found[e] != 0) atomicAdd(&counts[part * E + e], static_cast<unsigned long long>(found[e]));
}

// Sequences differ in length, so the host cannot know how many blocks each needs: a block takes a
// fixed number of slots.
__global__ void __launch_bounds__(kCountThreads)
    router_loss_count_packed_kernel(const std::int64_t* experts, std::int64_t size, int k,
                                    Sequences all, int E, unsigned long long* counts) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kCountThreads + threadIdx.x;
  if (at >= size) return;
  const std::int64_t e = experts[at];
  if (e >= 0 && e < E) atomicAdd(&counts[all.of(at / k) * E + e], 1ULL);
}

}  // namespace

void router_loss_fwd(const RouterLossIn& in, double coefficient, const RouterLossOut& out) {
  const std::int64_t tokens = in.logits.dim(0), E = in.logits.dim(1);
  const bool* pad = data_or_null<bool>(in.padding);
  dispatch_floating(in.logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* x = in.logits.data<T>();
    R* terms = out.terms.data<R>();
    launch(router_loss_terms_kernel<T, R>, grid_of(blocks_for(tokens, kTokensOfBlock)),
           dim3(kWarp, kTokensOfBlock), sizeof(R) * kTokensOfBlock * static_cast<std::size_t>(E), x,
           data_or_null<std::int64_t>(in.counts), pad, in.score, tokens,
           counted_sequences(tokens, in.counts, in.cu_seqlens), static_cast<int>(E), packable(x, E),
           terms);
    launch(router_loss_sum_kernel<R>, dim3(1), kSumThreads, 0, terms, pad, tokens, coefficient,
           out.loss.data<R>(), out.share.data<R>());
  });
}

void router_loss_bwd(const RouterLossIn& in, const Tensor& share, const Tensor& dloss,
                     const Tensor& dlogits) {
  const std::int64_t tokens = in.logits.dim(0), E = in.logits.dim(1);
  dispatch_floating(in.logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* x = in.logits.data<T>();
    T* dx = dlogits.data<T>();
    launch(router_loss_bwd_kernel<T, R>, grid_of(blocks_for(tokens, kTokensOfBlock)),
           dim3(kWarp, kTokensOfBlock), sizeof(R) * kTokensOfBlock * static_cast<std::size_t>(E), x,
           data_or_null<std::int64_t>(in.counts), data_or_null<bool>(in.padding), in.score,
           share.data<R>(), dloss.data<R>(), tokens,
           counted_sequences(tokens, in.counts, in.cu_seqlens), static_cast<int>(E),
           packable(x, E) && packable(dx, E), dx);
  });
}

void count_experts(const Tensor& experts, const Tensor& cu_seqlens, const Tensor& counts) {
  const std::int64_t parts = counts.dim(0), total = experts.numel();
  const int E = static_cast<int>(counts.dim(1));
  const std::int64_t* chosen = experts.data<std::int64_t>();
  auto* out = reinterpret_cast<unsigned long long*>(counts.data<std::int64_t>());
  if (cu_seqlens.defined()) {
    launch(router_loss_count_packed_kernel, grid_of(blocks_for(total, kCountThreads)),
           kCountThreads, 0, chosen, total, static_cast<int>(experts.dim(1)),
           counted_sequences(experts.dim(0), counts, cu_seqlens), E, out);
    return;
  }
  const std::int64_t size = total / parts;
  launch(router_loss_count_kernel, grid_of(parts, blocks_for(size, kCountThreads * kCountItems)),
         kCountThreads, 0, chosen, size, E, out);
}

}  // namespace weft::cuda
