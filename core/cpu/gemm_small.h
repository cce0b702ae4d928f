#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace weft::cpu {

/// One matrix product in plain C++ on the calling thread, for small products and for processors
/// without fused multiply-adds. Each element is summed over k in ascending order, however the rows
/// are split.
template <class T>
class SmallGemm {
 public:
  const T* a;
  const T* b;
  T* c;
  std::int64_t n, k;
  std::int64_t a_row, a_col, b_row, b_col, ldc;  ///< distance between indices, in elements
  bool accumulate;

  void rows(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t k0 = 0; k0 < k; k0 += kDepth) {
      const std::int64_t depth = std::min(kDepth, k - k0);
      std::int64_t j = 0;
      for (; j + kCols / 2 < n; j += kCols) strip<kCols>(begin, end, j, k0, depth);
      for (; j + kCols / 4 < n; j += kCols / 2) strip<kCols / 2>(begin, end, j, k0, depth);
      for (; j < n; j += kCols / 4) strip<kCols / 4>(begin, end, j, k0, depth);
    }
  }

 private:
  static constexpr int kCols = 64 / sizeof(T);
  static constexpr std::int64_t kDepth = 256;

  /// Columns [j, j + Cols) of c.
  template <int Cols>
  void strip(std::int64_t begin, std::int64_t end, std::int64_t j, std::int64_t k0,
             std::int64_t depth) const {
    const int width = static_cast<int>(std::min<std::int64_t>(Cols, n - j));
    const T* panel = b + k0 * b_row + j * b_col;
    std::int64_t panel_row = b_row;
    T packed[kDepth * Cols];
    if (b_col != 1 || width < Cols) {  // else unit steps and Cols columns
      for (std::int64_t p = 0; p < depth; ++p)
        for (int x = 0; x < Cols; ++x)
          packed[p * Cols + x] = x < width ? panel[p * b_row + x * b_col] : T(0);
      panel = packed;
      panel_row = Cols;
    }
    const bool fresh = k0 == 0 && !accumulate;
    std::int64_t i = begin;
    for (; i + 4 <= end; i += 4) tile<4, Cols>(i, j, k0, depth, panel, panel_row, width, fresh);
    for (; i < end; ++i) tile<1, Cols>(i, j, k0, depth, panel, panel_row, width, fresh);
  }

  template <int R, int Cols>
  void tile(std::int64_t i, std::int64_t j, std::int64_t k0, std::int64_t depth, const T* panel,
            std::int64_t panel_row, int width, bool fresh) const {
    // The compiler keeps a vector type in registers, but not always an array of sums.
    typedef T Row __attribute__((vector_size(Cols * sizeof(T))));
    Row sum[R] = {};
    T* const out = c + i * ldc + j;
    if (!fresh)
      for (int r = 0; r < R; ++r)
        for (int x = 0; x < width; ++x) sum[r][x] = out[r * ldc + x];
    const T* left = a + i * a_row + k0 * a_col;
    for (std::int64_t p = 0; p < depth; ++p) {
      Row right;
      std::memcpy(&right, panel + p * panel_row, sizeof right);
      for (int r = 0; r < R; ++r) sum[r] += left[r * a_row + p * a_col] * right;
    }
    if (width == Cols) {
      for (int r = 0; r < R; ++r) std::memcpy(out + r * ldc, &sum[r], sizeof(Row));
    } else {
      for (int r = 0; r < R; ++r)
        for (int x = 0; x < width; ++x) out[r * ldc + x] = sum[r][x];
    }
  }
};

}  // namespace weft::cpu
