#include "weft/core/kernels/grouped_linear.h"

#include <algorithm>

#include "weft/core/cpu/packed_product.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// Where bits depend on the cut, a piece in deterministic mode is a tile of fixed size.
constexpr std::int64_t kTileRows = 256, kTileCols = 512;
constexpr std::int64_t kRowStep = 16;  // pieces start at multiples of this row

template <class T, class Out>
void run_piece(const Product<T, Out>& p, ProductEngine engine, std::int64_t begin,
               std::int64_t end) {
  if (begin < end) product_part(p.tile(begin, 0, end - begin, p.n), engine);
}

template <class T, class Out>
void run_tile(const Product<T, Out>& p, ProductEngine engine, std::int64_t index) {
  const std::int64_t across = ceil_div(p.n, kTileCols);
  const Product<T, Out> tile =
      p.tile(index / across * kTileRows, index % across * kTileCols, kTileRows, kTileCols);
  run_piece(tile, engine, 0, tile.m);
}

// Computes part [begin, end) of the `units` of work of one group's product.
template <class T, class Out>
void run_part(const Product<T, Out>& p, std::int64_t begin, std::int64_t end, std::int64_t units) {
  if constexpr (!std::is_same_v<T, double>)
    if (p.has_dot_products()) return dot_products(p, p.n * begin / units, p.n * end / units);
  const ProductEngine engine = engine_for<T>(p.m, p.n, p.k);
  if (needs_fixed_tiles<T>()) {
    for (std::int64_t i = begin; i < end; ++i) run_tile(p, engine, i);
    return;
  }
  const auto row = [&](std::int64_t unit) {
    return unit == units ? p.m : p.m * unit / units / kRowStep * kRowStep;
  };
  run_piece(p, engine, row(begin), row(end));
}

// One pass over the products of all groups, cut into equal work rather than at group boundaries:
// threads share a large group, and small ones need no pass of their own.
template <class T, class At>
void run_groups(const std::int64_t* rows, std::int64_t groups, GroupedProduct kind,
                GroupedWidths width, const At& at) {
  const auto units_of = [&](std::int64_t n) {
    if (n == 0 || !needs_fixed_tiles<T>()) return n;
    return kind == GroupedProduct::weight_grad
               ? ceil_div(width.outputs, kTileRows) * ceil_div(width.inputs, kTileCols)
               : ceil_div(n, kTileRows) *
                     ceil_div(kind == GroupedProduct::forward ? width.outputs : width.inputs,
                              kTileCols);
  };
  if constexpr (std::is_same_v<T, float>) gemm_engine();  // throws here, not on a worker
  std::int64_t total = 0, all_rows = 0;
  for (std::int64_t e = 0; e < groups; ++e) {
    total += units_of(rows[e]);
    all_rows += rows[e];
  }
  if (total == 0) return;
  const std::int64_t work = all_rows * width.outputs * width.inputs / 8 / total + 1;
  parallel_for(total, work, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t first_unit = 0, first_row = 0;
    for (std::int64_t e = 0; e < groups && first_unit < end; ++e) {
      const std::int64_t units = units_of(rows[e]);
      const std::int64_t low = std::max(begin - first_unit, std::int64_t{0});
      const std::int64_t high = std::min(end - first_unit, units);
      if (low < high) run_part<T>(at(e, first_row), low, high, units);
      first_unit += units;
      first_row += rows[e];
    }
  });
}

Tensor from(const Tensor& t, std::int64_t offset) {
  return t.alias({t.numel() - offset}, {1}, offset);
}

}  // namespace

void grouped_gemm(const Tensor& a, const Tensor& b, GroupedProduct kind, const Tensor& rows,
                  bool accumulate, const Tensor& scratch, const Tensor& out) {
  const std::int64_t *n = rows.data<std::int64_t>(), groups = rows.numel();
  const GroupedWidths width(a, b, kind);
  const auto operands = [&](std::int64_t e, std::int64_t first) {
    return GroupOperands(kind, e, first, n[e], width.outputs, width.inputs, accumulate);
  };
  dispatch_floating(a.dtype(), [&]<class T>() {
    const auto into = [&]<class Out>(Out* pc) {
      const T *pa = a.data<T>(), *pb = b.data<T>();
      run_groups<T>(n, groups, kind, width, [&](std::int64_t e, std::int64_t first) {
        const GroupOperands g = operands(e, first);
        const GemmShape& s = g.shape;
        return Product<T, Out>{pa + g.a, pb + g.b, pc + g.out, s.m,       s.n,       s.k,
                               s.lda,    s.ldb,    s.ldc,      s.trans_a, s.trans_b, accumulate};
      });
    };
    if constexpr (!kIsHalf<T>) return into(out.data<T>());
    if constexpr (std::is_same_v<T, bf16>)
      if (!scratch.defined())
        return out.dtype() == DType::f32 ? into(out.data<float>()) : into(out.data<bf16>());
    if constexpr (kIsHalf<T>) {
      // Each product widens its operands block by block, on all threads.
      std::int64_t first = 0;
      for (std::int64_t e = 0; e < groups; first += n[e++]) {
        if (n[e] == 0) continue;
        const GroupOperands g = operands(e, first);
        gemm(from(a, g.a), from(b, g.b), g.shape, scratch, from(out, g.out));
      }
    }
  });
}

}  // namespace weft::cpu
