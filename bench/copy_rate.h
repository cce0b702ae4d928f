#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "weft/bench/harness.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/tensor.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/// The rates of array copies and of reading, in bytes read and written per second.
namespace weft::bench {

/// Plain stores first read the line that they write, unless it is in the cache; streaming stores
/// bypass the cache. For arrays larger than the cache they save a third of the traffic.
enum class Stores : std::uint8_t { plain, streaming };

namespace detail {

inline constexpr std::int64_t kCopyBlock = 1024;

#if defined(__x86_64__)
inline void copy_streaming(const float* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i + 4 <= n; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
  _mm_sfence();
}
#else
inline void copy_streaming(const float* from, float* to, std::int64_t n) {
  std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
}
#endif

// Block by block, because memcpy of a long array would choose streaming stores.
inline void copy_plain(const float* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kCopyBlock)
    std::memcpy(to + i, from + i, kCopyBlock * sizeof(float));
}

}  // namespace detail

/// `bytes` is the size of both arrays together.
inline double copy_rate(double bytes, Stores stores) {
  constexpr std::int64_t kBlock = detail::kCopyBlock;
  const std::int64_t blocks = static_cast<std::int64_t>(bytes) / 8 / kBlock;
  const Tensor from = Tensor::ones({blocks * kBlock}), to = Tensor::zeros({blocks * kBlock});
  const float* x = from.data<float>();
  float* y = to.data<float>();
  const double seconds = seconds_per_call([&] {
    parallel_for(blocks, kBlock, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t first = begin * kBlock, n = (end - begin) * kBlock;
      if (stores == Stores::streaming)
        detail::copy_streaming(x + first, y + first, n);
      else
        detail::copy_plain(x + first, y + first, n);
    });
  });
  return 8.0 * static_cast<double>(blocks * kBlock) / seconds;
}

/// Of an array of `bytes` that is only read, a vector at a time: with a word at a time a core waits
/// for few lines at once.
inline double read_rate(double bytes) {
  constexpr std::int64_t kBlock = detail::kCopyBlock;
  const std::int64_t blocks = static_cast<std::int64_t>(bytes) / 4 / kBlock;
  const Tensor array = Tensor::zeros({blocks * kBlock});
  const float* x = array.data<float>();
  std::atomic<bool> zero{true};
  const double seconds = seconds_per_call([&] {
    parallel_for(blocks, kBlock, [&](std::int64_t begin, std::int64_t end) {
      if (simd().optimizer.absmax(x + begin * kBlock, (end - begin) * kBlock) != 0) zero = false;
    });
  });
  check(zero, "read_rate: the array must hold zeros");
  return 4.0 * static_cast<double>(blocks * kBlock) / seconds;
}

}  // namespace weft::bench
