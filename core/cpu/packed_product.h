#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "weft/core/cpu/product.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// This thread's memory for packed operands and attention's copies of rows, at least `bytes` (some
/// MiB), kept until the thread ends and valid until the next call, which every packed_product()
/// makes; null when the system has no memory left. It is not counted by memory_stats().
void* packing_buffer(std::size_t bytes);

/// The cut of a product into blocks that stay in the caches: rows and inner lengths of a block of
/// a, inner lengths and columns of a block of b.
struct PackedBlocks {
  std::int64_t rows, columns, inner;
  bool strips;             ///< a is packed too
  bool one_panel = false;  ///< of b at a time: all rows of a are one block
};
/// What the cut depends on besides the size of a product: that of tiles, panels and elements,
/// which operands are transposed, and PanelKernels::packs_rows.
struct PackedTile {
  std::int64_t rows, columns;
  std::size_t element;
  bool trans_a, trans_b, packs_rows;
};
PackedBlocks packed_blocks(std::int64_t m, std::int64_t n, std::int64_t k, const PackedTile& tile);

/// The number of ways (lines of a set) of this processor's L1 data cache.
std::int64_t l1_ways();

/// Whether c is written past the caches, so that its lines are not read first: where it is complete
/// after one pass and larger than a core's own cache. Only with a transposed a, as in gradients of
/// weights: what reads them next, a norm or a sum over ranks, comes much later.
template <class T>
bool goes_past_caches(const Product<T>& p, const PackedBlocks& block) {
  constexpr std::int64_t kLine = 64, kOwnCache = std::int64_t{1} << 20, kSize = sizeof(T);
  return p.trans_a && !p.accumulate && !p.read_soon && p.k <= block.inner &&
         p.m * p.n * kSize >= kOwnCache && p.ldc * kSize % kLine == 0 &&
         reinterpret_cast<std::uintptr_t>(p.c) % kLine == 0;
}

/// The elements of the panels of a block.
template <class T>
std::int64_t panels_size(const PackedBlocks& block) {
  return (block.one_panel ? simd().panels<T>().columns : block.columns) * block.inner;
}

/// packed_product() in the given blocks. `buffer`: packed_bytes() bytes at a multiple of 64.
template <class T, class After>
void packed_in_blocks(const Product<T>& p, const T* bias, const After& after,
                      const PackedBlocks& block, void* buffer) {
  const PanelKernels<T>& kernels = simd().panels<T>();
  T* const panels = static_cast<T*>(buffer);
  T* const strips = panels + panels_size<T>(block);
  const bool past_caches = goes_past_caches(p, block);
  for (std::int64_t j = 0; j < p.n; j += block.columns) {
    const std::int64_t n = std::min(block.columns, p.n - j);
    for (std::int64_t l = 0; l < std::max(p.k, std::int64_t{1}); l += block.inner) {
      const std::int64_t k = std::min(block.inner, p.k - l);
      if (p.trans_b) kernels.pack_transposed(p.b + j * p.ldb + l, p.ldb, n, k, panels);
      for (std::int64_t i = 0; i < p.m; i += block.rows) {
        const std::int64_t m = std::min(block.rows, p.m - i);
        T* const c = p.c + i * p.ldc + j;
        const bool adds = l > 0 || p.accumulate;
        kernels.product({.a = p.a + (p.trans_a ? l * p.lda + i : i * p.lda + l),
                         .lda = p.lda,
                         .trans_a = p.trans_a,
                         .strips = block.strips ? strips : nullptr,
                         .b = p.trans_b || i > 0 ? nullptr : p.b + l * p.ldb + j,
                         .ldb = p.ldb,
                         .panels = panels,
                         .one_panel = block.one_panel,
                         .c = c,
                         .ldc = p.ldc,
                         .m = m,
                         .n = n,
                         .k = k,
                         .start = adds   ? c
                                  : bias ? bias + j
                                         : nullptr,
                         .start_row = adds ? p.ldc : 0,
                         .l1_ways = l1_ways(),
                         .past_caches = past_caches});
        if (l + k >= p.k) after(i, m, j, n);
      }
    }
  }
}

/// Size of the packed operands of one block.
template <class T>
std::size_t packed_bytes(const PackedBlocks& block) {
  const std::int64_t more =
      block.strips ? simd().panels<T>().strips_size(block.rows, block.inner) : std::int64_t{0};
  return static_cast<std::size_t>(panels_size<T>(block) + more) * sizeof(T);
}

/// Whether a (m, k) b (n, k)^T, with panels of `panel_columns` columns, has so few rows that
/// packing b takes long beside the product, and sums so long that transposing c takes little.
bool few_rows_pay(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t panel_columns);

/// Whether product_of_few_rows() computes the product, or parts of it, if they have few rows.
template <class T>
bool may_have_few_rows(const Product<T>& p) {
  return std::is_same_v<T, float> && p.trans_b && !p.trans_a && !p.accumulate;
}
template <class T>
bool has_few_rows(const Product<T>& p) {
  return may_have_few_rows(p) && few_rows_pay(p.m, p.n, p.k, simd().panels<T>().columns);
}

/// The cut of product_of_few_rows(): its panels have `columns` columns in all, a block of c's
/// transpose `rows` rows.
PackedBlocks few_rows_blocks(std::int64_t m, std::int64_t k, const PanelKernels<float>& kernels);
/// Its memory.
std::size_t few_rows_bytes(std::int64_t m, std::int64_t k, const PackedBlocks& block,
                           const PanelKernels<float>& kernels);

/// The kernels of product_of_few_rows(): so few rows fill the panels of AVX2, and half of a panel
/// of AVX-512. The bits are the same.
const PanelKernels<float>& few_rows_kernels(std::int64_t m);

/// Writes the transpose of x (n, m) into c. c is far: a group of its rows is fetched while the one
/// before is written.
inline void write_transposed(const float* x, std::int64_t n, std::int64_t m, float* c,
                             std::int64_t ldc) {
  constexpr std::int64_t kGroup = 16, kLine = 16;
  for (std::int64_t i = 0; i < m; i += kGroup) {
    for (std::int64_t row = i + kGroup; row < std::min(i + 2 * kGroup, m); ++row)
      for (std::int64_t j = 0; j < n + kLine; j += kLine)
        __builtin_prefetch(c + row * ldc + std::min(j, n - 1), 1);
    simd().attention.transpose(x + i, m, n, std::min(kGroup, m - i), 1, c + i * ldc, ldc);
  }
}

/// packed_product() of few rows as the transpose of b^T a^T: packs the few rows of a, and tiles
/// read those of b^T as they are. Blocks of c's transpose stay in the cache until they are
/// complete.
template <class After>
void product_of_few_rows(const PanelKernels<float>& kernels, const Product<float>& p,
                         const float* bias, const After& after, const PackedBlocks& block,
                         void* buffer) {
  float* const panels = static_cast<float*>(buffer);
  float* const sums = panels + block.columns * p.k;
  float* const strips = sums + block.rows * p.m;
  for (std::int64_t l = 0; l < p.k; l += block.inner)
    kernels.pack_transposed(p.a + l, p.lda, p.m, std::min(block.inner, p.k - l),
                            panels + l * block.columns);
  for (std::int64_t j = 0; j < p.n; j += block.rows) {
    const std::int64_t n = std::min(block.rows, p.n - j);
    for (std::int64_t r = 0; bias && r < n; ++r) std::fill_n(sums + r * p.m, p.m, bias[j + r]);
    for (std::int64_t l = 0; l < p.k; l += block.inner) {
      const bool adds = l > 0 || bias;
      kernels.product({.a = p.b + j * p.ldb + l,
                       .lda = p.ldb,
                       .strips = block.strips ? strips : nullptr,
                       .panels = panels + l * block.columns,
                       .c = sums,
                       .ldc = p.m,
                       .m = n,
                       .n = p.m,
                       .k = std::min(block.inner, p.k - l),
                       .start = adds ? sums : nullptr,
                       .start_row = adds ? p.m : 0,
                       .l1_ways = l1_ways()});
    }
    write_transposed(sums, n, p.m, p.c + j, p.ldc);
    after(std::int64_t{0}, p.m, j, n);
  }
}

/// c = op(a) op(b) + start on the calling thread, where start is the bias (n), or c itself when
/// `accumulate`, or null. Calls after(i, rows, j, columns) for each block of c when it is complete,
/// while it is in the cache. Each element is one chain of fma over k in ascending order: the bits
/// depend neither on the blocks, nor on how a product is cut into smaller ones, nor on the
/// instruction set.
template <class T, class After>
void packed_product(const Product<T>& p, const T* bias, const After& after) {
  const PanelKernels<T>& kernels = simd().panels<T>();
  if constexpr (std::is_same_v<T, float>)
    if (has_few_rows(p)) {
      const PanelKernels<float>& narrow = few_rows_kernels(p.m);
      const PackedBlocks few = few_rows_blocks(p.m, p.k, narrow);
      if (void* buffer = packing_buffer(few_rows_bytes(p.m, p.k, few, narrow)))
        return product_of_few_rows(narrow, p, bias, after, few, buffer);
    }
  const PackedBlocks best = packed_blocks(
      p.m, p.n, p.k,
      {kernels.rows, kernels.columns, sizeof(T), p.trans_a, p.trans_b, kernels.packs_rows});
  if (void* buffer = packing_buffer(packed_bytes<T>(best)))
    return packed_in_blocks(p, bias, after, best, buffer);
  // No memory is left: a tile's rows and a panel, as long as the stack's buffer allows.
  constexpr std::int64_t kBytes = 16 << 10, kElements = kBytes / std::int64_t{sizeof(T)};
  alignas(64) std::byte buffer[kBytes];
  const PackedBlocks small{.rows = kernels.rows,
                           .columns = kernels.columns,
                           .inner = kElements / (kernels.rows + kernels.columns) / 4 * 4,
                           .strips = p.trans_a};
  packed_in_blocks(p, bias, after, small, buffer);
}

/// A part of a product on the calling thread.
template <class T, class Out>
void product_part(const Product<T, Out>& p, ProductEngine engine) {
  if constexpr (std::is_same_v<T, bf16>) {
    engine == ProductEngine::library ? library_product(p) : widened_small_product(p);
  } else {
    if (engine == ProductEngine::packed) return packed_product<T>(p, nullptr, [](auto...) {});
    if constexpr (std::is_same_v<T, float>)
      if (engine == ProductEngine::library) return library_product(p);
    p.plain_loops(0, p.m);
  }
}

/// The size of the parts into which a product is cut.
struct ProductTiles {
  std::int64_t rows, columns;
};

/// Cuts m x n into a grid of `threads` equal tiles, rounded up to multiples of `unit`, in the way
/// whose tile has the lowest cost(tile).
template <class Cost>
ProductTiles cheapest_tiles(std::int64_t m, std::int64_t n, std::int64_t threads,
                            const ProductTiles& unit, const Cost& cost) {
  ProductTiles best{};
  for (std::int64_t down = 1; down <= threads; ++down) {
    if (threads % down != 0) continue;
    const ProductTiles t{ceil_div(ceil_div(m, down), unit.rows) * unit.rows,
                         ceil_div(ceil_div(n, threads / down), unit.columns) * unit.columns};
    if (down == 1 || cost(t) < cost(best)) best = t;
  }
  return best;
}

/// What the cut of a packed product among threads depends on besides its size.
struct PackedKind {
  bool trans_a, trans_b, may_have_few_rows;
};
/// The part of each thread, in whole tiles and panels, whose rows and columns are `unit`; of a
/// transposed product, which parts of few rows are, in whole panels and tiles.
ProductTiles packed_tiles(const PackedKind& kind, std::int64_t m, std::int64_t n, std::int64_t k,
                          ProductTiles unit, std::int64_t threads);
template <class T>
ProductTiles packed_tiles(const Product<T>& p, std::int64_t threads) {
  const PanelKernels<T>& kernels = simd().panels<T>();
  return packed_tiles({p.trans_a, p.trans_b, may_have_few_rows(p)}, p.m, p.n, p.k,
                      {kernels.rows, kernels.columns}, threads);
}

/// The threads that share a product: one inside a parallel loop.
inline std::int64_t product_threads() { return detail::in_parallel() ? 1 : num_threads(); }

/// packed_product() on all threads; after() is called on any of them.
template <class T, class After>
void parallel_product(const Product<T>& p, const T* bias, const After& after) {
  const ProductTiles t = packed_tiles(p, product_threads());
  const std::int64_t across = ceil_div(p.n, t.columns);
  const std::int64_t tiles = ceil_div(p.m, t.rows) * across;
  parallel_for(tiles, p.work() / tiles, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t i = at / across * t.rows, j = at % across * t.columns;
      packed_product(p.tile(i, j, t.rows, t.columns), bias ? bias + j : nullptr,
                     [&](std::int64_t row, std::int64_t rows, std::int64_t column,
                         std::int64_t columns) { after(i + row, rows, j + column, columns); });
    }
  });
}

}  // namespace weft::cpu
