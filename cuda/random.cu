// Random numbers, computed in double and then rounded, as on the CPU. This file is compiled with
// -fmad=false, so that products and sums are rounded separately.
#include "weft/core/kernels/convert.h"
#include "weft/core/kernels/random.h"
#include "weft/cuda/math.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ inline T rounded(double v) {
  if constexpr (std::is_arithmetic_v<T>)
    return convert<T>(v);
  else
    return narrow<T>(static_cast<float>(v));
}

// Each thread handles the four elements of a Philox block, which two pairs of normal numbers share;
// the first block may begin before t does.
template <class T>
__global__ void __launch_bounds__(kThreads)
    random_draw_kernel(std::int64_t n, RandomKey given, Distribution distribution, double a,
                       double b, double limit, T* t) {
  const RandomKey key = with_device_stream(given);
  const std::int64_t block = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t begin = 4 * block - static_cast<std::int64_t>(key.first & 3);
  if (begin >= n) return;
  const auto bits = random_block(key, (key.first >> 2) + static_cast<std::uint64_t>(block));
  double value[4];
  if (distribution == Distribution::normal) {
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {
      const auto normal = normal_pair(bits[pair], bits[pair + 1]);
      value[pair] = a + b * normal[0];
      value[pair + 1] = a + b * normal[1];
    }
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto u = static_cast<double>(uniform_from_bits(bits[j]));
      const double in_range = a + (b - a) * u;
      if (distribution == Distribution::uniform)
        value[j] = limit < in_range ? limit : in_range;
      else
        value[j] = u < a ? 1.0 : 0.0;
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (const std::int64_t i = begin + j; i >= 0 && i < n) t[i] = rounded<T>(value[j]);
}

}  // namespace

void draw(const Tensor& t, const RandomKey& key, Distribution distribution, double a, double b) {
  const std::int64_t n = t.numel();
  if (n == 0) return;
  const auto lead = static_cast<std::int64_t>(key.first & 3);
  const double limit = distribution == Distribution::uniform ? uniform_limit(t.dtype(), a, b) : 0;
  dispatch_all(t.dtype(), [&]<class T>() {
    launch(random_draw_kernel<T>, grid_of(blocks_for(lead + n, 4 * kThreads)), kThreads, 0, n, key,
           distribution, a, b, limit, t.data<T>());
  });
}

}  // namespace weft::cuda
