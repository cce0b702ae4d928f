#include "weft/core/kernels/dropout.h"
#include "weft/cuda/math.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;

// A thread processes the elements of `Blocks` Philox blocks of the key's sequence. Its first
// element is x[begin]; begin is negative where the sequence starts inside a block.
template <class T, int Blocks>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(std::int64_t n, RandomKey given, std::uint32_t threshold, Compute<T> scale,
                   bool packs, const T* x, T* y) {
  const RandomKey key = with_device_stream(given);
  constexpr int kCount = 4 * Blocks, V = 16 / static_cast<int>(sizeof(T));
  constexpr int kPacks = kCount / V;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t begin = thread * kCount - static_cast<std::int64_t>(key.first & 3);
  if (begin >= n) return;
  const auto drop = [&](T v, std::uint32_t bits) {
    return bits >> 8 < threshold ? T(Compute<T>(0)) : narrow<T>(widen(v) * scale);
  };
  std::array<std::uint32_t, 4> bits[Blocks];
#pragma unroll
  for (int b = 0; b < Blocks; ++b)
    bits[b] = random_block(key, (key.first >> 2) + static_cast<std::uint64_t>(thread * Blocks + b));
  if (packs && begin + kCount <= n) {
    Pack<T, V> v[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) v[p] = load_pack<T, V>(x + begin + p * V);
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j / V][j % V] = drop(v[j / V][j % V], bits[j / 4][j % 4]);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) store_pack(y + begin + p * V, v[p]);
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if (const std::int64_t i = begin + j; i >= 0 && i < n) y[i] = drop(x[i], bits[j / 4][j % 4]);
  }
}

}  // namespace

void dropout(const Tensor& x, const RandomKey& key, std::uint32_t threshold, double scale,
             const Tensor& y) {
  const std::int64_t n = x.numel();
  if (n == 0) return;
  dispatch_floating(x.dtype(), [&]<class T>() {
    constexpr int kBlocks = sizeof(T) == 2 ? 2 : 1;
    const auto lead = static_cast<std::int64_t>(key.first & 3);
    const T* from = x.data<T>();
    T* to = y.data<T>();
    const bool packs = lead == 0 && packable(from, 0) && packable(to, 0);
    launch(dropout_kernel<T, kBlocks>, grid_of(blocks_for(lead + n, kThreads * 4 * kBlocks)),
           kThreads, 0, n, key, threshold, static_cast<Compute<T>>(scale), packs, from, to);
  });
}

}  // namespace weft::cuda
