#include "weft/core/kernels/dropout.h"

#include <algorithm>
#include <type_traits>

#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// Number of Philox blocks drawn at a time; their numbers stay in the L1 cache.
constexpr std::int64_t kBlocks = 64;
constexpr std::int64_t kElements = 4 * kBlocks;

template <class T>
void drop(const T* x, const float* numbers, std::int64_t n, float threshold, double scale, T* y) {
  if constexpr (std::is_same_v<T, double>) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = numbers[i] < threshold ? 0 : x[i] * scale;
  } else {
    simd().of<T>().dropout(x, numbers, threshold, static_cast<float>(scale), y, n);
  }
}

}  // namespace

void dropout(const Tensor& x, const RandomKey& key, std::uint32_t threshold, double scale,
             const Tensor& y) {
  const std::int64_t n = x.numel();
  // Chunks are aligned to the Philox blocks of the global sequence; the first may start inside a
  // block.
  const auto lead = static_cast<std::int64_t>(key.first & 3);
  const std::int64_t chunks = n == 0 ? 0 : (lead + n + kElements - 1) / kElements;
  const auto limit = static_cast<float>(threshold);  // exact: at most 2^24
  dispatch_floating(x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_for(chunks, 8 * kElements, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float numbers[kElements];
      for (std::int64_t c = begin; c < end; ++c) {
        simd().random.draw(key, (key.first >> 2) + static_cast<std::uint64_t>(c * kBlocks), kBlocks,
                           numbers);
        const std::int64_t start = c * kElements - lead;  // index of numbers[0] in x; negative
                                                          // before the start of x
        const std::int64_t from = std::max<std::int64_t>(start, 0);
        const std::int64_t to = std::min(start + kElements, n);
        drop(in + from, numbers + (from - start), to - from, limit, scale, out + from);
      }
    });
  });
}

}  // namespace weft::cpu
