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

/// The transpose of weight (n, k) in panels: 32 columns of the product, one row per k.
inline void pack_panels(const float* weight, std::int64_t n, std::int64_t k, float* packed) {
  const auto transpose = simd().attention.transpose;
  parallel_for((n + kPanel - 1) / kPanel, kPanel * k, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p)
      transpose(weight + p * kPanel * k, k, std::min(kPanel, n - p * kPanel), k, 1.0f,
                packed + p * kPanel * k, kPanel);
  });
}

/// y (rows, n) = x (rows, k) times packed panels, plus `start`, whose rows are start_row apart: y
/// itself to add to it, or a bias with start_row 0; null for none. On the calling thread; the bits
/// of a row do not depend on the others.
inline void panel_product(const float* x, const float* packed, const float* start,
                          std::int64_t start_row, float* y, std::int64_t rows, std::int64_t n,
                          std::int64_t k) {
  const auto product = simd().attention.product;
  for (std::int64_t j = 0; j < n; j += kPanel)
    product({x, k, 1, packed + j * k, kPanel, y + j, n, rows, std::min(kPanel, n - j), k,
             start ? start + j : nullptr, start_row});
}

/// y (m, n) = x (m, k) weight (n, k)^T + bias (n), then after(first, count) for each block of rows
/// while it is in the cache.
template <class After>
void narrow_product(const float* x, const float* weight, const float* bias, float* packed, float* y,
                    std::int64_t m, std::int64_t n, std::int64_t k, const After& after) {
  pack_panels(weight, n, k, packed);
  parallel_for((m + kRows - 1) / kRows, kRows * n * k / 8,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin * kRows; i < std::min(m, end * kRows); i += kRows) {
                   const std::int64_t rows = std::min(kRows, m - i);
                   panel_product(x + i * k, packed, bias, 0, y + i * n, rows, n, k);
                   after(i, rows);
                 }
               });
}

}  // namespace weft::cpu
