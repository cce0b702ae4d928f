#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "weft/core/cpu/gemm_small.h"

namespace weft::cpu {

/// One matrix product c (m, n) = op(a) op(b), plus c when `accumulate`.
template <class T, class Out = T>
struct Product {
  const T* a;
  const T* b;
  Out* c;
  std::int64_t m, n, k, lda, ldb, ldc;
  bool trans_a, trans_b, accumulate;

  /// In the units of parallel_for.
  std::int64_t work() const { return m * n * k / 8 + 1; }

  /// Below this many multiplications a library call costs more than the product (0.4 us).
  bool small() const { return m * n * k <= 32 * 32 * 32; }

  Product tile(std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t cols) const {
    Product p = *this;
    p.a += i * (trans_a ? 1 : lda);
    p.b += j * (trans_b ? ldb : 1);
    p.c += i * ldc + j;
    p.m = std::min(rows, m - i);
    p.n = std::min(cols, n - j);
    return p;
  }

  /// Computes rows [begin, end) in plain C++ on the calling thread.
  void in_tree(std::int64_t begin, std::int64_t end) const {
    const SmallGemm<T> g{a,
                         b,
                         c,
                         n,
                         k,
                         trans_a ? 1 : lda,
                         trans_a ? lda : 1,
                         trans_b ? 1 : ldb,
                         trans_b ? ldb : 1,
                         ldc,
                         accumulate};
    g.rows(begin, end);
  }
};

/// Computes the product with oneDNN, on the calling thread.
void library_product(const Product<float>& p);

/// Whether library_product() is faster than the in-tree product.
template <class T>
bool for_library(const Product<T>& p) {
#if WEFT_USE_ONEDNN
  return std::is_same_v<T, float> && !p.small();
#else
  // Sanitizers cannot see the memory accesses of oneDNN, so sanitizer builds do not use it.
  static_cast<void>(p);
  return false;
#endif
}

}  // namespace weft::cpu
