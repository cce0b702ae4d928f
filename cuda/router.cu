// One warp per token: expert e belongs to lane e % 32, slot i of the result to lane i.
#include <limits>

#include "weft/core/kernels/router.h"
#include "weft/cuda/order_key.h"
#include "weft/cuda/router_rows.h"

namespace weft::cuda {
namespace {

constexpr int kNobody = std::numeric_limits<int>::max();

/// One lane's view of a row in shared memory: elements lane, lane + 32, ... A set bit marks a
/// removed element.
template <class R>
struct Candidates {
  const R* row;
  int n;
  unsigned out = 0;
  Key<R> key = 0;  ///< of the best remaining element; 0: none
  int number = kNobody;

  static __device__ int lane() { return static_cast<int>(threadIdx.x); }
  __device__ void find() {
    key = 0;
    number = kNobody;
    for (int e = lane(), j = 0; e < n; e += kWarp, ++j) {
      if (out >> j & 1u) continue;
      const Key<R> mine = key_of(row[e], false);
      if (mine > key) {
        key = mine;
        number = e;
      }
    }
  }
  /// Removes and returns the best element of the whole warp; ties by lowest index.
  __device__ int take() {
    const Key<R> top = warp_reduce(key, Max{});
    const int best = warp_reduce(key == top ? number : kNobody, Min{});
    if (best % kWarp == lane()) {
      out |= 1u << (best / kWarp);
      find();
    }
    return best;
  }
};

/// The sum of the `count` best of n neighbours, in descending order.
template <class R>
__device__ inline R sum_of_best(const R* v, int n, int count) {
  R sum = 0;
  Key<R> last = 0;
  int last_at = -1;
  for (int i = 0; i < count; ++i) {
    Key<R> best = 0;
    int best_at = 0;
    for (int j = 0; j < n; ++j) {
      const Key<R> key = key_of(v[j], false);
      const bool open = i == 0 || key < last || (key == last && j > last_at);
      if (open && key > best) {
        best = key;
        best_at = j;
      }
    }
    sum += v[best_at];
    last = best;
    last_at = best_at;
  }
  return sum;
}

/// Removes the experts outside the best groups. `sums` has room for one number per group.
template <class R>
__device__ inline void keep_best_groups(Candidates<R>& experts, const RouterOptions& o, R* sums) {
  const int groups = static_cast<int>(o.groups), kept = static_cast<int>(o.group_topk);
  const int size = experts.n / groups, lane = static_cast<int>(threadIdx.x);
  for (int g = lane; g < groups; g += kWarp)
    sums[g] = sum_of_best(experts.row + g * size, size, static_cast<int>(router_group_best(o)));
  __syncwarp();
  Candidates<R> best{sums, groups};
  best.find();
  experts.out = ~0u;
  for (int i = 0; i < kept; ++i) {
    const int first = best.take() * size;
    for (int e = lane, j = 0; e < experts.n; e += kWarp, ++j)
      if (e >= first && e < first + size) experts.out &= ~(1u << j);
  }
}

template <class T, class R>
__global__ void __launch_bounds__(kWarp* kTokensOfBlock)
    router_fwd_kernel(const T* logits, const R* select, const float* bias, const bool* padding,
                      RouterOptions o, std::int64_t tokens, int E, bool packed, R* probs,
                      std::int64_t* experts) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kTokensOfBlock + threadIdx.y;
  if (t >= tokens) return;  // the whole warp exits
  R* row = dynamic_shared<R>() + threadIdx.y * (E + o.groups);
  const int lane = static_cast<int>(threadIdx.x), k = static_cast<int>(o.topk);
  const T* x = logits + t * E;
  const bool softmax = o.score == RouterScore::softmax;
  if (padding && padding[t]) {
    if (lane < k) {
      probs[t * k + lane] = 0;
      experts[t * k + lane] = -1;
    }
    return;
  }
  load_row(x, E, packed, row);
  R top = 0, sum = 1;
  if (o.pre_softmax) exp_sum_of(row, E, top, sum);
  if (select) {
    for (int e = lane; e < E; e += kWarp) row[e] = select[t * E + e];
  } else if (bias || (o.groups && (!softmax || o.pre_softmax))) {
    for (int e = lane; e < E; e += kWarp) {
      const R s = softmax ? exp_of(row[e] - top) / sum : router_score(o.score, row[e]);
      row[e] = bias ? s + static_cast<R>(bias[e]) : s;
    }
  }
  __syncwarp();
  Candidates<R> candidates{row, E};
  if (o.groups) keep_best_groups(candidates, o, row + E);
  candidates.find();
  int mine = 0;
  for (int i = 0; i < k; ++i) {
    const int best = candidates.take();
    if (i == lane) mine = best;
  }
  const bool has_slot = lane < k;
  const R v = has_slot ? widen(x[mine]) : kLowest<R>;
  R p;
  if (softmax) {
    if (!o.pre_softmax) {
      top = warp_max(v);
      sum = warp_sum(has_slot ? exp_of(v - top) : R(0));
    }
    p = exp_of(v - top) / sum;
  } else {
    p = has_slot ? router_score(o.score, v) : R(0);
    sum = warp_sum(p);
    if (router_normalises(o)) p /= sum + static_cast<R>(kRouterEps);
  }
  if (has_slot) {
    probs[t * k + lane] = p * static_cast<R>(o.scaling);
    experts[t * k + lane] = mine;
  }
}

template <class T, class R>
__global__ void __launch_bounds__(kWarp* kTokensOfBlock)
    router_bwd_kernel(const T* logits, const std::int64_t* experts, const R* dprobs,
                      RouterOptions o, std::int64_t tokens, int E, bool packed, T* dlogits) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kTokensOfBlock + threadIdx.y;
  if (t >= tokens) return;  // the whole warp exits
  R* row = dynamic_shared<R>() + threadIdx.y * E;
  const int lane = static_cast<int>(threadIdx.x), k = static_cast<int>(o.topk);
  const bool has_slot = lane < k;
  const std::int64_t mine = has_slot ? experts[t * k + lane] : -1;
  const bool routed = mine >= 0 && mine < E;
  const R v = routed ? widen(logits[t * E + mine]) : kLowest<R>;
  const R g = routed ? dprobs[t * k + lane] * static_cast<R>(o.scaling) : R(0);
  const bool anybody = __any_sync(kAllLanes, routed);

  R dx = 0;
  if (o.pre_softmax && anybody) {
    R top, sum;
    load_row(logits + t * E, E, packed, row);
    exp_sum_of(row, E, top, sum);
    const R s = routed ? exp_of(v - top) / sum : R(0), dot = warp_sum(s * g);
    for (int e = lane; e < E; e += kWarp) row[e] = -exp_of(row[e] - top) / sum * dot;
    dx = s * (g - dot);
  } else {
    for (int e = lane; e < E; e += kWarp) row[e] = 0;
    if (o.score == RouterScore::softmax) {
      const R top = warp_max(v), e = routed ? exp_of(v - top) : R(0), p = e / warp_sum(e);
      dx = p * (g - warp_sum(routed ? p * g : R(0)));
    } else {
      const R y = routed ? router_score(o.score, v) : R(0);
      const R sum = warp_sum(y) + static_cast<R>(kRouterEps), dot = warp_sum(y * g);
      const R dy = router_normalises(o) ? (g - dot / sum) / sum : g;
      if (routed) dx = dy * router_slope(o.score, v, y);
    }
  }
  __syncwarp();
  if (routed) row[mine] = dx;
  __syncwarp();
  store_row(row, E, packed, dlogits + t * E);
}

}  // namespace

void route_fwd(const Tensor& logits, const Tensor& select, const Tensor& bias,
               const Tensor& padding, const RouterOptions& o, const Tensor& probs,
               const Tensor& experts) {
  const std::int64_t tokens = logits.dim(0), E = logits.dim(1);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* x = logits.data<T>();
    launch(router_fwd_kernel<T, R>, grid_of(blocks_for(tokens, kTokensOfBlock)),
           dim3(kWarp, kTokensOfBlock),
           sizeof(R) * kTokensOfBlock * static_cast<std::size_t>(E + o.groups), x,
           data_or_null<R>(select), data_or_null<float>(bias), data_or_null<bool>(padding), o,
           tokens, static_cast<int>(E), packable(x, E), probs.data<R>(),
           experts.data<std::int64_t>());
  });
}

void route_bwd(const Tensor& logits, const Tensor& experts, const Tensor& dprobs,
               const RouterOptions& o, const Tensor& dlogits) {
  const std::int64_t tokens = logits.dim(0), E = logits.dim(1);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* x = logits.data<T>();
    T* dx = dlogits.data<T>();
    launch(router_bwd_kernel<T, R>, grid_of(blocks_for(tokens, kTokensOfBlock)),
           dim3(kWarp, kTokensOfBlock), sizeof(R) * kTokensOfBlock * static_cast<std::size_t>(E), x,
           experts.data<std::int64_t>(), dprobs.data<R>(), o, tokens, static_cast<int>(E),
           packable(x, E) && packable(dx, E), dx);
  });
}

}  // namespace weft::cuda
