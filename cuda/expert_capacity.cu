// One block per expert. It finds the smallest probability to keep digit by digit, with histograms
// in shared memory, then scans the slots in order, so that ties are kept by position.
#include "weft/core/kernels/expert_capacity.h"
#include "weft/cuda/order_key.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kDigits = 256;  // one thread per digit
constexpr int kWarps = kThreads / kWarp;

template <class T>
__global__ void __launch_bounds__(kThreads)
    expert_capacity_kernel(const T* probs, const std::int64_t* experts, std::int64_t slots,
                           std::int64_t count, std::int64_t capacity, double factor,
                           bool by_probability, T* kept_probs, std::int64_t* kept_experts) {
  using K = Key<T>;
  WEFT_SHARED(found, int[kDigits]);
  WEFT_SHARED(ties_of_warp, int[kWarps]);
  WEFT_SHARED(chosen_digit, int);
  WEFT_SHARED(left, std::int64_t);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const std::int64_t expert = blockIdx.x;

  if (factor > 0) {
    int with_expert = 0;
    for (std::int64_t s = thread; s < slots; s += kThreads)
      with_expert += experts[s] >= 0 && experts[s] < count;
    found[thread] = with_expert;
    __syncthreads();
  }
  // Keys above `bar` are kept, and `left` of those equal to it. Without probabilities all keys are
  // 0.
  K bar = 0;
  if (thread == 0) {
    left = capacity;
    if (factor > 0) {
      std::int64_t all = 0;
      for (int i = 0; i < kThreads; ++i) all += found[i];
      left = capacity_per_expert(all, count, factor);
    }
  }
  __syncthreads();
  for (int shift = 8 * static_cast<int>(sizeof(K)) - 8; by_probability && shift >= 0; shift -= 8) {
    found[thread] = 0;
    __syncthreads();
    for (std::int64_t s = thread; s < slots; s += kThreads) {
      if (experts[s] != expert) continue;
      const K key = key_of(probs[s], false);
      if (shift + 8 == 8 * static_cast<int>(sizeof(K)) || key >> (shift + 8) == bar >> (shift + 8))
        atomicAdd(&found[static_cast<int>(key >> shift & 0xff)], 1);
    }
    __syncthreads();
    if (thread == 0) {
      int digit = kDigits - 1;
      while (digit > 0 && found[digit] < left) left -= found[digit--];
      chosen_digit = digit;
    }
    __syncthreads();
    bar |= static_cast<K>(chosen_digit) << shift;
  }

  std::int64_t ties = left;  // ties that may still be kept
  for (std::int64_t first = 0; first < slots; first += kThreads) {
    const std::int64_t s = first + thread;
    const std::int64_t e = s < slots ? experts[s] : -1;
    const bool mine = e == expert;
    const K key = mine && by_probability ? key_of(probs[s], false) : 0;
    const bool tie = mine && key == bar;
    const unsigned tied = __ballot_sync(kAllLanes, tie);
    if (lane == 0) ties_of_warp[thread / kWarp] = __popc(tied);
    __syncthreads();
    int ahead = __popc(tied & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < thread / kWarp) ahead += ties_of_warp[w];
      all += ties_of_warp[w];
    }
    if (mine) {
      const bool keep = key > bar || (tie && ahead < ties);
      kept_probs[s] = keep ? probs[s] : T(0);
      kept_experts[s] = keep ? expert : -1;
    } else if (expert == 0 && s < slots && (e < 0 || e >= count)) {
      kept_probs[s] = 0;
      kept_experts[s] = -1;
    }
    ties -= all;
    __syncthreads();
  }
}

}  // namespace

void limit_capacity(const LimitCapacityIn& in, const LimitCapacityOut& out) {
  const auto run = [&]<class T>() {
    launch(expert_capacity_kernel<T>, grid_of(in.count), kThreads, 0, in.probs.data<T>(),
           in.experts.data<std::int64_t>(), in.experts.numel(), in.count, in.capacity, in.factor,
           in.policy == DropPolicy::probability, out.probs.data<T>(),
           out.experts.data<std::int64_t>());
  };
  if (in.probs.dtype() == DType::f64)
    run.template operator()<double>();
  else
    run.template operator()<float>();
}

}  // namespace weft::cuda
