#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "weft/core/cpu/gemm_small.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {

/// How the CPU computes a product: plain loops, packed_product(), or oneDNN.
enum class ProductEngine { loops, packed, library };

/// What computes f32 products that are not small: the environment variable WEFT_GEMM, weft or
/// onednn; without it weft with AVX2 and AVX-512 and in builds without oneDNN, else onednn. Throws
/// Error if this build has no oneDNN.
ProductEngine gemm_engine();
/// Whether oneDNN computes bf16 products where the processor is fast at them: with
/// WEFT_GEMM=onednn, and by default unless the AVX2 kernels run. Throws Error as gemm_engine()
/// does.
bool library_has_bf16();
/// Selects weft or onednn for the process, for tests and measurements; "": as WEFT_GEMM says.
void set_gemm_engine(const char* name);

/// Below this many multiplications, packing or a library call (0.4 us) costs more than the product.
inline bool is_small_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m * n * k <= 32 * 32 * 32;
}

/// One matrix product c (m, n) = op(a) op(b), plus c when `accumulate`.
template <class T, class Out = T>
struct Product {
  const T* a;
  const T* b;
  Out* c;
  std::int64_t m, n, k, lda, ldb, ldc;
  bool trans_a, trans_b, accumulate;
  bool read_soon = false;  ///< c is scratch, which is read as soon as the product is complete

  /// In the units of parallel_for.
  std::int64_t work() const { return m * n * k / 8 + 1; }

  bool small() const { return is_small_product(m, n, k); }

  /// One or a few rows times the rows of a weight, as in generation: dot_products() is fastest, and
  /// each row has the bits that it has alone.
  bool has_dot_products() const {
    constexpr std::int64_t kLongRow = 64;  // fills the vectors of a dot product
    constexpr std::int64_t kRows = 8;      // for more, packing is faster
    const bool row_of_b = trans_b || (n == 1 && ldb == 1);
    if (!row_of_b || trans_a || k < kLongRow) return false;
    return m == 1 || small() || (m <= kRows && simd().panels<float>().fast);
  }

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
  void plain_loops(std::int64_t begin, std::int64_t end) const {
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

/// Computes columns [begin, end) of a product that has_dot_products().
template <class T, class Out>
void dot_products(const Product<T, Out>& p, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kRows = 8, kColumns = 64;
  float sums[kRows * kColumns];
  for (std::int64_t j = begin; j < end; j += kColumns)
    for (std::int64_t i = 0; i < p.m; i += kRows) {
      const std::int64_t rows = std::min(kRows, p.m - i), columns = std::min(kColumns, end - j);
      simd().of<T>().dots({.x = p.a + i * p.lda,
                           .ldx = p.lda,
                           .rows = rows,
                           .y = p.b + j * p.ldb,
                           .ldy = p.ldb,
                           .columns = columns,
                           .n = p.k,
                           .sums = sums,
                           .ld_sums = kColumns});
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t q = 0; q < columns; ++q) {
          Out& c = p.c[(i + r) * p.ldc + j + q];
          c = Out(sums[r * kColumns + q] + (p.accumulate ? static_cast<float>(c) : 0.0f));
        }
    }
}

/// Computes the product with oneDNN, on the calling thread.
void library_product(const Product<float>& p);
/// The same where multiplies_bf16(). Sums are f32; numbers below the smallest normal one may count
/// as 0.
void library_product(const Product<bf16, bf16>& p);
void library_product(const Product<bf16, float>& p);
/// A small bf16 product in f32, on the calling thread.
void widened_small_product(const Product<bf16, bf16>& p);
void widened_small_product(const Product<bf16, float>& p);

/// Whether the processor's bf16 instructions compute bf16 products, through oneDNN. Else they are
/// widened to f32.
bool multiplies_bf16();

/// Whether products of T must be cut into tiles of fixed size, so that their bits do not depend on
/// the number of threads. oneDNN's products must, which include every bf16 product that is not
/// widened. Throws Error if gemm_engine() does.
template <class T>
bool needs_fixed_tiles() {
  if constexpr (std::is_same_v<T, double>) return false;
  if constexpr (std::is_same_v<T, bf16>) return deterministic();
  return gemm_engine() == ProductEngine::library && deterministic();
}

/// The engine of a whole product, which its parts follow: their bits do not depend on the cut.
template <class T>
ProductEngine engine_for(std::int64_t m, std::int64_t n, std::int64_t k) {
  if (is_small_product(m, n, k)) return ProductEngine::loops;
  if constexpr (std::is_same_v<T, bf16>) {
    return ProductEngine::library;
  } else {
    if constexpr (std::is_same_v<T, float>) return gemm_engine();
    return simd().panels<T>().fast ? ProductEngine::packed : ProductEngine::loops;
  }
}

}  // namespace weft::cpu
