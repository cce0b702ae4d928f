#pragma once
#include <algorithm>
#include <cstdint>

namespace weft::cpu {

/// Elements with a stride, or of 16 bits, are gathered into a block, computed by the loop over
/// contiguous elements, and scattered: an op has one loop, and the same bits for all strides.
inline constexpr std::int64_t kRunBlock = 256;

/// Calls f(begin, n) for blocks of n <= kRunBlock elements.
template <class F>
void each_block(std::int64_t elements, const F& f) {
  for (std::int64_t i = 0; i < elements; i += kRunBlock) f(i, std::min(kRunBlock, elements - i));
}

/// n elements with stride `step` as contiguous ones: where they are, or copied to `block`.
template <class T>
const T* gather(const T* x, std::int64_t step, std::int64_t n, T* block) {
  if (step == 1) return x;
  for (std::int64_t i = 0; i < n; ++i) block[i] = x[i * step];
  return block;
}

/// write(y) computes n contiguous elements y: in place, or in a block that is then copied to the
/// elements with stride `step`.
template <class T, class F>
void scatter(T* to, std::int64_t step, std::int64_t n, const F& write) {
  if (step == 1) return write(to);
  T block[kRunBlock];
  write(block);
  for (std::int64_t i = 0; i < n; ++i) to[i * step] = block[i];
}

}  // namespace weft::cpu
