#include "weft/core/cpu/packed_product.h"

#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "weft/core/cpu/processor.h"

namespace weft::cpu {
namespace {

// The size of blocks that cut n evenly, at most `largest` and a multiple of `unit`.
std::int64_t even_block(std::int64_t n, std::int64_t largest, std::int64_t unit) {
  const std::int64_t units = std::max(ceil_div(n, unit), std::int64_t{1});
  const std::int64_t blocks = ceil_div(units, std::max(largest / unit, std::int64_t{1}));
  return ceil_div(units, blocks) * unit;
}

// Bytes of a product's blocks, if a is no transpose: of a row of a block of a, and of a block of b.
struct BlockBytes {
  std::int64_t inner, b;
};

// The rows of each tile meet all panels of the block of b, which comes from L2. The L3 of AMD's
// processors is fast enough for that: there the block takes half of the share that a core has of an
// L3 for eight, and its panels are several times as long, so that a and c pass less often.
BlockBytes block_bytes() {
  static const BlockBytes found = [] {
    constexpr std::int64_t kKiB = 1024;
    const BlockBytes standard{1536, l2_bytes() / 2};
    const std::int64_t shared = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 0, 32'768 * kKiB) / 16;
    if (is_amd() && shared >= 1024 * kKiB) return BlockBytes{6144, shared};
    return standard;
  }();
  return found;
}

// Whether strips of rows pay where so many panels meet each. A core that also serves a neighbour's
// thread issues less, and its L1 keeps short pieces of many rows badly. With four panels packing
// takes more than it gains. AMD's processors were not measured.
bool strips_pay(std::int64_t panels) { return !is_amd() && panels >= 6; }

// Whether all rows of a lie in strips in L2, so that a panel of b can stay in L1 until all of them
// have met it. Strips pay where many panels meet them.
bool keeps_one_panel(std::int64_t m, std::int64_t n, const PackedTile& tile) {
  constexpr std::int64_t kTiles = 24, kPanels = 12;
  return tile.packs_rows && strips_pay(kPanels) && !tile.trans_a && !tile.trans_b &&
         m <= kTiles * tile.rows && n >= kPanels * tile.columns;
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};

}  // namespace

void* packing_buffer(std::size_t bytes) {
  thread_local std::unique_ptr<void, Free> buffer;
  thread_local std::size_t size = 0;
  constexpr std::size_t kAlignment = 64;
  if (bytes > size) {
    size = 0;
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    buffer.reset(std::aligned_alloc(kAlignment, rounded));
    if (buffer) size = rounded;
  }
  return buffer.get();
}

PackedBlocks packed_blocks(std::int64_t m, std::int64_t n, std::int64_t k, const PackedTile& tile) {
  const auto size = static_cast<std::int64_t>(tile.element);
  if (keeps_one_panel(m, n, tile)) {
    // A panel of 32 KiB leaves room in an L1 of 48 for the strips that many tiles bring; few tiles
    // gain more from longer sums.
    const std::int64_t inner = m > 16 * tile.rows ? 1024 : 1536;
    return {.rows = ceil_div(m, tile.rows) * tile.rows,
            .columns = ceil_div(n, tile.columns) * tile.columns,
            .inner = even_block(k, inner / size, 4),
            .strips = true,
            .one_panel = true};
  }
  // All panels of b's block meet a tile's rows of a. With a transpose a block of a stays in L2, a
  // panel in L1, and b's block comes from L3: its panels pass once for each.
  const BlockBytes most = tile.trans_a ? BlockBytes{1536, std::int64_t{2} << 20} : block_bytes();
  const std::int64_t inner = even_block(k, most.inner / size, 4);
  const std::int64_t columns = even_block(n, most.b / size / inner, tile.columns);
  const bool strips = tile.trans_a || (tile.packs_rows && strips_pay(columns / tile.columns));
  return {.rows = even_block(m, (tile.trans_a ? 16 : 8) * tile.rows, tile.rows),
          .columns = columns,
          .inner = inner,
          .strips = strips};
}

std::int64_t l1_ways() {
  constexpr std::int64_t kWay = 4096;  // no larger, as a page's address alone says the set
  static const std::int64_t found = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 8 * kWay, 64 * kWay) / kWay;
  return found;
}

bool few_rows_pay(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t panel_columns) {
  constexpr std::int64_t kRows = 256, kTerms = 512;
  constexpr std::int64_t kPanels = std::int64_t{1} << 20;  // 4 MiB, which L3 holds
  return m <= kRows && 3 * m <= n && k >= kTerms &&
         ceil_div(m, panel_columns) * panel_columns * k <= kPanels;
}

const PanelKernels<float>& few_rows_kernels(std::int64_t m) {
  static const SimdTable* const narrow = find_simd("avx2");
  const PanelKernels<float>& best = simd().panels<float>();
  if (!narrow || !best.fast) return best;
  const PanelKernels<float>& other = narrow->panels<float>();
  return m <= other.columns && other.columns < best.columns ? other : best;
}

PackedBlocks few_rows_blocks(std::int64_t m, std::int64_t k, const PanelKernels<float>& kernels) {
  // The rows of b^T for a tile stay in L2 while all panels pass.
  constexpr std::int64_t kInner = 768;
  const std::int64_t panels = ceil_div(m, kernels.columns);
  return {.rows = 16 * kernels.rows,
          .columns = panels * kernels.columns,
          .inner = even_block(k, kInner, 4),
          .strips = kernels.packs_rows && strips_pay(panels)};
}

std::size_t few_rows_bytes(std::int64_t m, std::int64_t k, const PackedBlocks& block,
                           const PanelKernels<float>& kernels) {
  const std::int64_t strip = block.strips ? kernels.rows * block.inner : 0;
  return sizeof(float) * static_cast<std::size_t>(block.columns * k + block.rows * m + strip);
}

ProductTiles packed_tiles(const PackedKind& kind, std::int64_t m, std::int64_t n, std::int64_t k,
                          ProductTiles unit, std::int64_t threads) {
  // Processor cycles for each k, about: sixteen multiply-adds a cycle, and what each tile packs or
  // reads again. A row that is read costs some 150 cycles whatever k is.
  constexpr double kPacked = 0.4, kTransposed = 1.2, kPackedRow = 0.7;
  const double passes = 150.0 / static_cast<double>(std::max(k, std::int64_t{1}));
  const double read = 0.1 + passes;
  const auto has_few_rows = [&](const ProductTiles& t) {
    return kind.may_have_few_rows &&
           few_rows_pay(std::min(t.rows, m), std::min(t.columns, n), k, unit.columns);
  };
  const auto cost = [&](ProductTiles t) {
    double row = kind.trans_a ? kPackedRow + passes : read;
    double column = kind.trans_b ? kTransposed : kPacked;
    if (has_few_rows(t)) {  // packs the rows into panels, reads the columns
      row = kTransposed;
      column = read;
      t.rows = ceil_div(t.rows, unit.columns) * unit.columns;
    }
    return 0.06 * static_cast<double>(t.rows * t.columns) + row * static_cast<double>(t.rows) +
           column * static_cast<double>(t.columns);
  };
  const ProductTiles best = cheapest_tiles(m, n, threads, unit, cost);
  if (!kind.may_have_few_rows) return best;
  const ProductTiles few = cheapest_tiles(m, n, threads, {unit.columns, unit.rows}, cost);
  return has_few_rows(few) && cost(few) < cost(best) ? few : best;
}

}  // namespace weft::cpu
