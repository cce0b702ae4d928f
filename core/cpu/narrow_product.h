#pragma once
#include <algorithm>

#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {

// Up to this many rows, x stays in the L1 cache together with a panel of the weight, or the whole
// weight stays in L2. Adding the bias in the sums' registers is then free, while a separate pass
// costs 3 to 7 % of the product; for more rows the library's blocking is faster.
inline constexpr std::int64_t kFewRows = 64;
inline bool is_narrow(std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kNarrow = 256, kCached = 512 << 10;
  return k <= kNarrow || (k <= 2 * kNarrow && 4 * n * k <= kCached);
}

inline constexpr std::int64_t kPanel = 32, kRows = 64;

/// Number of f32 elements of the packed weight (n, k).
inline std::int64_t narrow_scratch(std::int64_t n, std::int64_t k) {
  return (n + kPanel - 1) / kPanel * kPanel * k;
}

/// y (m, n) = x (m, k) weight (n, k)^T + bias (n), then after(first, count) for each block of rows
/// while it is in the cache.
template <class After>
void narrow_product(const float* x, const float* weight, const float* bias, float* packed, float* y,
                    std::int64_t m, std::int64_t n, std::int64_t k, const After& after) {
  const AttentionKernels& f = simd().attention;
  // The weight's transpose in panels: 32 columns of y, one row per k.
  parallel_for((n + kPanel - 1) / kPanel, kPanel * k, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p)
      f.transpose(weight + p * kPanel * k, k, std::min(kPanel, n - p * kPanel), k, 1.0f,
                  packed + p * kPanel * k, kPanel);
  });
  parallel_for((m + kRows - 1) / kRows, kRows * n * k / 8,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin * kRows; i < std::min(m, end * kRows); i += kRows) {
                   const std::int64_t rows = std::min(kRows, m - i);
                   for (std::int64_t j = 0; j < n; j += kPanel)
                     f.product({x + i * k, k, 1, packed + j * k, kPanel, y + i * n + j, n, rows,
                                std::min(kPanel, n - j), k, bias + j, 0});
                   after(i, rows);
                 }
               });
}

}  // namespace weft::cpu
