#pragma once
#include <algorithm>
#include <cstddef>

#include "weft/core/cpu/product.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {

/// This thread's memory for packed operands, at least `bytes` (a few MB), kept until the thread
/// ends and valid until the next call, which every packed_product() makes; null when the system has
/// no memory left.
void* packing_buffer(std::size_t bytes);

/// The cut of a product into blocks that stay in the caches: rows and inner lengths of a block of
/// a, inner lengths and columns of a block of b.
struct PackedBlocks {
  std::int64_t rows, columns, inner;
};
/// For tiles of the given size. `strips`: a is packed too.
PackedBlocks packed_blocks(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t tile_rows,
                           std::int64_t panel_columns, std::size_t element, bool strips);

/// packed_product() in the given blocks. `buffer`: packed_bytes() bytes at a multiple of 64.
template <class T, class After>
void packed_in_blocks(const Product<T>& p, const T* bias, const After& after,
                      const PackedBlocks& block, void* buffer) {
  const PanelKernels<T>& kernels = simd().panels<T>();
  T* const panels = static_cast<T*>(buffer);
  T* const strips = panels + block.columns * block.inner;
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
                         .strips = p.trans_a ? strips : nullptr,
                         .b = p.trans_b || i > 0 ? nullptr : p.b + l * p.ldb + j,
                         .ldb = p.ldb,
                         .panels = panels,
                         .c = c,
                         .ldc = p.ldc,
                         .m = m,
                         .n = n,
                         .k = k,
                         .start = adds   ? c
                                  : bias ? bias + j
                                         : nullptr,
                         .start_row = adds ? p.ldc : 0});
        if (l + k >= p.k) after(i, m, j, n);
      }
    }
  }
}

/// Size of the packed operands of one block.
template <class T>
std::size_t packed_bytes(const PackedBlocks& block, bool strips) {
  const std::int64_t more =
      strips ? simd().panels<T>().strips_size(block.rows, block.inner) : std::int64_t{0};
  return static_cast<std::size_t>(block.columns * block.inner + more) * sizeof(T);
}

/// c = op(a) op(b) + start on the calling thread, where start is the bias (n), or c itself when
/// `accumulate`, or null. Calls after(i, rows, j, columns) for each block of c when it is complete,
/// while it is in the cache. Each element is one chain of fma over k in ascending order: the bits
/// depend neither on the blocks, nor on how a product is cut into smaller ones, nor on the
/// instruction set.
template <class T, class After>
void packed_product(const Product<T>& p, const T* bias, const After& after) {
  const PanelKernels<T>& kernels = simd().panels<T>();
  const PackedBlocks best =
      packed_blocks(p.m, p.n, p.k, kernels.rows, kernels.columns, sizeof(T), p.trans_a);
  if (void* buffer = packing_buffer(packed_bytes<T>(best, p.trans_a)))
    return packed_in_blocks(p, bias, after, best, buffer);
  // No memory is left: small blocks, which fit the stack.
  const PackedBlocks small{kernels.rows, kernels.columns, 32};
  alignas(64) std::byte buffer[16 << 10];
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
    p.in_tree(0, p.m);
  }
}

/// The size of one part of a product for each thread.
struct ProductTiles {
  std::int64_t rows, columns;
};
ProductTiles packed_tiles(std::int64_t m, std::int64_t n, bool trans_a, bool trans_b,
                          std::int64_t tile_rows, std::int64_t panel_columns);
template <class T>
ProductTiles packed_tiles(const Product<T>& p) {
  const PanelKernels<T>& kernels = simd().panels<T>();
  return packed_tiles(p.m, p.n, p.trans_a, p.trans_b, kernels.rows, kernels.columns);
}

/// packed_product() on all threads; after() is called on any of them.
template <class T, class After>
void parallel_product(const Product<T>& p, const T* bias, const After& after) {
  const ProductTiles t = packed_tiles(p);
  const std::int64_t across = (p.n + t.columns - 1) / t.columns;
  const std::int64_t tiles = (p.m + t.rows - 1) / t.rows * across;
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
