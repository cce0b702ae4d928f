#pragma once
#include <algorithm>
#include <cstdint>

namespace weft::cpu {

/// One matrix product in plain C++, on the calling thread: f64, and f32 products too small for a
/// library call. Every element is summed over k in ascending order, whatever the split of the rows.
template <class T>
class SmallGemm {
 public:
  const T* a;
  const T* b;
  T* c;
  std::int64_t n, k;
  std::int64_t a_row, a_col, b_row, b_col, ldc;  ///< elements from one index to the next
  bool accumulate;

  void rows(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t k0 = 0; k0 < k; k0 += kDepth) {
      const std::int64_t depth = std::min(kDepth, k - k0);
      for (std::int64_t j = 0; j < n; j += kCols) {
        const int width = static_cast<int>(std::min<std::int64_t>(kCols, n - j));
        const T* panel = b + k0 * b_row + j * b_col;
        std::int64_t panel_row = b_row;
        T packed[kDepth * kCols];
        if (b_col != 1 || width < kCols) {  // a strip of b with unit steps and kCols columns
          for (std::int64_t p = 0; p < depth; ++p)
            for (int x = 0; x < kCols; ++x)
              packed[p * kCols + x] = x < width ? panel[p * b_row + x * b_col] : T(0);
          panel = packed;
          panel_row = kCols;
        }
        const bool fresh = k0 == 0 && !accumulate;
        std::int64_t i = begin;
        for (; i + 4 <= end; i += 4) tile<4>(i, j, k0, depth, panel, panel_row, width, fresh);
        for (; i < end; ++i) tile<1>(i, j, k0, depth, panel, panel_row, width, fresh);
      }
    }
  }

 private:
  static constexpr int kCols = 64 / sizeof(T);
  static constexpr std::int64_t kDepth = 256;

  template <int R>
  void tile(std::int64_t i, std::int64_t j, std::int64_t k0, std::int64_t depth, const T* panel,
            std::int64_t panel_row, int width, bool fresh) const {
    T sum[R][kCols] = {};
    if (!fresh)
      for (int r = 0; r < R; ++r)
        for (int x = 0; x < width; ++x) sum[r][x] = c[(i + r) * ldc + j + x];
    const T* left = a + i * a_row + k0 * a_col;
    for (std::int64_t p = 0; p < depth; ++p) {
      const T* right = panel + p * panel_row;
      for (int r = 0; r < R; ++r) {
        const T factor = left[r * a_row + p * a_col];
        for (int x = 0; x < kCols; ++x) sum[r][x] += factor * right[x];
      }
    }
    for (int r = 0; r < R; ++r)
      for (int x = 0; x < width; ++x) c[(i + r) * ldc + j + x] = sum[r][x];
  }
};

}  // namespace weft::cpu
