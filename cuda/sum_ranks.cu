// Sums the tensors of several ranks on one GPU, reading them in place.
#include <algorithm>

#include "weft/core/kernels/sum_ranks.h"
#include "weft/cuda/math.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 4096;

// Each thread sums N adjacent elements, rank by rank.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_ranks_kernel(RankParts parts, RankSum how, T* out, std::int64_t packs) {
  using A = Compute<T>;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs;
       i += std::int64_t{gridDim.x} * kThreads) {
    const auto read = [&](int r) {
      return load_pack<T, N>(static_cast<const T*>(parts.at[r]) + i * N);
    };
    A sum[N];
    const auto first = read(0);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = static_cast<A>(first[j]);
    for (int r = 1; r < parts.count; ++r) {
      const auto x = read(r);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] = add_rank(how, sum[j], static_cast<A>(x[j]));
    }
    Pack<T, N> y;
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = narrow<T>(sum[j]);
    store_pack(out + i * N, y);
  }
}

template <class T>
void run(T* out, std::int64_t n, const RankParts& parts, RankSum how) {
  constexpr int kPack = 16 / static_cast<int>(sizeof(T));
  bool packed = packable(out, n);
  for (int r = 0; r < parts.count; ++r)
    packed = packed && packable(static_cast<const T*>(parts.at[r]), n);
  const std::int64_t packs = packed ? n / kPack : n;
  const dim3 grid = grid_of(std::min(blocks_for(packs, kThreads), kMaxBlocks));
  if (packed)
    launch(sum_ranks_kernel<T, kPack>, grid, kThreads, 0, parts, how, out, packs);
  else
    launch(sum_ranks_kernel<T, 1>, grid, kThreads, 0, parts, how, out, packs);
}

}  // namespace

void sum_ranks(const Tensor& out, std::int64_t first, std::int64_t n, const RankParts& parts,
               RankSum how) {
  dispatch_numeric(
      out.dtype(), [&]<class T>() { run(out.data<T>() + first, n, parts, how); }, "sum_ranks");
}

}  // namespace weft::cuda
