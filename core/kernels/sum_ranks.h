#pragma once
#include "weft/core/tensor.h"

namespace weft {

enum class RankSum : std::uint8_t { sum, max, min };

/// One step of a reduction over ranks. max and min propagate a NaN from either side.
template <class A>
constexpr A add_rank(RankSum how, A a, A b) {
  if (how == RankSum::sum) return static_cast<A>(a + b);
  return b != b || (how == RankSum::max ? b > a : b < a) ? b : a;
}

/// The most ranks that one kernel sums.
inline constexpr int kMaxGpuRanks = 16;

/// Pointers to the same elements on several ranks, in rank order.
struct RankParts {
  const void* at[kMaxGpuRanks];
  int count;
};

/// The first n elements of out = the reduction of all parts in rank order; bf16 is summed in f32
/// and rounded once. out may be one of the parts. f32, f64, bf16, f16, i32, i64, u8.
using SumRanksKernel = void(const Tensor& out, std::int64_t first, std::int64_t n,
                            const RankParts& parts, RankSum how);

namespace cuda {
SumRanksKernel sum_ranks;
}  // namespace cuda

}  // namespace weft
