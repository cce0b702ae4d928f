#include "weft/core/kernels/remainder.h"

#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

constexpr std::int64_t kChunk = 4096;

// Calls f(first, n) for ranges of n elements.
template <class F>
void each_stretch(std::int64_t n, F f) {
  parallel_for((n + kChunk - 1) / kChunk, kChunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c)
      f(c * kChunk, c * kChunk + kChunk < n ? kChunk : n - c * kChunk);
  });
}

}  // namespace

void merge_remainder(const Tensor& upper, const Tensor& remainder, const Tensor& out) {
  const bf16* u = upper.data<bf16>();
  const auto* r = static_cast<const std::int16_t*>(remainder.raw());
  float* x = out.data<float>();
  each_stretch(upper.numel(), [=](std::int64_t first, std::int64_t n) {
    simd().optimizer.merge(u + first, r + first, x + first, n);
  });
}

void split_remainder(const Tensor& x, const Tensor& upper, const Tensor& remainder) {
  const float* from = x.data<float>();
  bf16* u = upper.data<bf16>();
  auto* r = static_cast<std::int16_t*>(remainder.raw());
  each_stretch(x.numel(), [=](std::int64_t first, std::int64_t n) {
    simd().optimizer.split(from + first, u + first, r + first, n);
  });
}

}  // namespace weft::cpu
