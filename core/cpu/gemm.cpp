#include "weft/core/kernels/gemm.h"

#include <algorithm>

#include "weft/core/cpu/packed_product.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/elementwise.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

using cpu::ceil_div;
using cpu::Product;
using cpu::ProductEngine;
using cpu::ProductTiles;

// Operands of 16 bits are widened block by block: three f32 blocks of at most this many rows and
// columns.
constexpr std::int64_t kWiden = 2048;

std::int64_t widened(std::int64_t n) { return std::min(n, kWiden); }

constexpr std::int64_t kRowBlock = 16;  // rows of one work item of the in-tree product

// Each tile of a product by oneDNN packs its part of both operands, so the fewest and squarest
// tiles are fastest: one for each thread. In deterministic mode the size is fixed, since the bits
// must not depend on the number of threads.
template <class T, class Out>
ProductTiles library_tiles(const Product<T, Out>& p, std::int64_t threads) {
  if (cpu::needs_fixed_tiles<T>()) return {256, 512};
  // For the library, rows of a cost more to pack than columns of b, unless b has to be transposed.
  return cpu::cheapest_tiles(p.m, p.n, threads, {16, 16}, [&](const ProductTiles& t) {
    return p.trans_b ? 2 * t.rows + 3 * t.columns : 2 * t.rows + t.columns;
  });
}

// Whether a product, as the gradient of a weight from many rows, is the sum of two: over the first
// and over the second half of the rows. Where the number of threads is even, each half of them then
// reads the rows that it wrote in the ops before, not all rows, of which the others come from other
// caches. The sums must be small beside the operands. The shape alone decides, not the number of
// threads, on which the bits must not depend.
bool adds_halves(const GemmShape& g) {
  constexpr std::int64_t kRows = 1024, kShare = 8;
  return g.trans_a && !g.trans_b && g.batch.numel() == 1 && g.k >= kRows &&
         !cpu::is_small_product(g.m, g.n, g.k) && g.m * g.n * kShare <= (g.m + g.n) * g.k;
}

// Tiles for `threads` threads.
template <class T, class Out>
ProductTiles tiles_of(const Product<T, Out>& p, ProductEngine engine, std::int64_t threads) {
  if constexpr (!kIsHalf<T>)
    if (engine == ProductEngine::packed) return cpu::packed_tiles(p, threads);
  return library_tiles(p, threads);
}

// Dot products on all threads, without packing or widening the weight.
template <class T, class Out>
void row_product(const Product<T, Out>& p) {
  parallel_for(p.n, p.m * p.k,
               [&](std::int64_t begin, std::int64_t end) { cpu::dot_products(p, begin, end); });
}

// `batch` products, each cut into tiles for `threads` threads; at(i) returns the i-th.
template <class T, class Out, class At>
void run_tiles(std::int64_t batch, const At& at, ProductEngine engine, std::int64_t threads) {
  const Product<T, Out> first = at(0);
  const ProductTiles t = tiles_of(first, engine, threads);
  const std::int64_t across = ceil_div(first.n, t.columns);
  const std::int64_t each = ceil_div(first.m, t.rows) * across;
  parallel_for(batch * each, first.work() / each, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      cpu::product_part(at(i / each).tile(i % each / across * t.rows, i % each % across * t.columns,
                                          t.rows, t.columns),
                        engine);
  });
}

// The same: whole products when there is one for each thread, else each cut for all of them.
template <class T, class Out, class At>
void run_tiles(std::int64_t batch, const At& at, ProductEngine engine) {
  const std::int64_t threads = cpu::product_threads();
  run_tiles<T, Out>(batch, at, engine, batch >= threads ? 1 : threads);
}

template <class T, class At>
void run(std::int64_t batch, const At& at) {
  const Product<T> first = at(0);
  const std::int64_t m = first.m;
  if constexpr (std::is_same_v<T, float>)
    if (batch == 1 && first.has_dot_products()) return row_product(first);
  const ProductEngine engine = cpu::engine_for<T>(m, first.n, first.k);
  if (engine != ProductEngine::loops) {
    run_tiles<T, T>(batch, at, engine);
  } else if (batch == 1 && first.small()) {
    first.plain_loops(0, m);
  } else {
    const std::int64_t blocks = ceil_div(m, kRowBlock);
    parallel_for(batch * blocks, first.work() / blocks + 1,
                 [&](std::int64_t begin, std::int64_t end) {
                   while (begin < end) {
                     const std::int64_t i = begin / blocks, stop = std::min(end, (i + 1) * blocks);
                     at(i).plain_loops((begin - i * blocks) * kRowBlock,
                                       std::min(m, (stop - i * blocks) * kRowBlock));
                     begin = stop;
                   }
                 });
  }
}

template <class T, class Out>
Product<T, Out> product(const GemmShape& g, const T* a, const T* b, Out* c, std::int64_t index) {
  for (int axis = g.batch.size() - 1; axis >= 0; --axis) {
    const std::int64_t at = index % g.batch[axis];
    index /= g.batch[axis];
    a += at * g.a_step[axis];
    b += at * g.b_step[axis];
    c += at * g.out_step[axis];
  }
  return {a, b, c, g.m, g.n, g.k, g.lda, g.ldb, g.ldc, g.trans_a, g.trans_b, g.accumulate};
}

// Whether row_product() computes it, if it is not f64.
bool has_dot_products(const GemmShape& g) {
  return g.batch.numel() == 1 &&
         product<float, float>(g, nullptr, nullptr, nullptr, 0).has_dot_products();
}

// `second`: m x n numbers for the sums of the second half.
void product_in_halves(const Product<float>& p, const Tensor& second, const Tensor& out) {
  const std::int64_t half = (p.k + 1) / 2;
  const auto at = [&](std::int64_t i) {
    Product<float> part = p;
    part.k = i == 0 ? half : p.k - half;
    if (i == 0) return part;
    part.a += half * p.lda;
    part.b += half * p.ldb;
    part.c = second.data<float>();
    part.ldc = p.n;
    part.accumulate = false;
    return part;
  };
  const std::int64_t threads = cpu::product_threads();
  run_tiles<float, float>(2, at, cpu::engine_for<float>(p.m, p.n, half),
                          threads % 2 == 0 ? threads / 2 : threads);
  const Tensor sums = out.alias({p.m, p.n}, {p.ldc, 1}, 0);
  cpu::binary(sums, second.alias({p.m, p.n}, {p.n, 1}, 0), BinaryOp::add, sums);
}

template <class From, class To>
void convert_block(const From* x, std::int64_t ldx, std::int64_t rows, std::int64_t cols, To* y,
                   std::int64_t ldy) {
  void (*row)(const From*, To*, std::int64_t);
  if constexpr (std::is_same_v<To, float>)
    row = simd().of<From>().widen;
  else
    row = simd().of<To>().narrow;
  parallel_for(rows, cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) row(x + r * ldx, y + r * ldy, cols);
  });
}

// 16 bits without instructions for them: widens blocks of the operands, multiplies in f32 and
// rounds the sum once.
template <class T, class Out>
void widened_product(const Product<T, Out>& p, float* scratch) {
  float* wide_a = scratch;
  float* wide_b = wide_a + widened(p.m) * widened(p.k);
  float* wide_c = wide_b + widened(p.k) * widened(p.n);
  for (std::int64_t i = 0; i < p.m; i += kWiden) {
    const std::int64_t m = widened(p.m - i);
    for (std::int64_t j = 0; j < p.n; j += kWiden) {
      const std::int64_t n = widened(p.n - j);
      Out* out = p.c + i * p.ldc + j;
      if (p.accumulate) convert_block(out, p.ldc, m, n, wide_c, n);
      for (std::int64_t l = 0; l < p.k; l += kWiden) {
        const std::int64_t k = widened(p.k - l);
        const std::int64_t lda = p.trans_a ? m : k, ldb = p.trans_b ? k : n;
        convert_block(p.a + (p.trans_a ? l * p.lda + i : i * p.lda + l), p.lda, p.trans_a ? k : m,
                      lda, wide_a, lda);
        convert_block(p.b + (p.trans_b ? j * p.ldb + l : l * p.ldb + j), p.ldb, p.trans_b ? n : k,
                      ldb, wide_b, ldb);
        const Product<float> block{wide_a, wide_b,    wide_c,    m,
                                   n,      k,         lda,       ldb,
                                   n,      p.trans_a, p.trans_b, p.accumulate || l > 0,
                                   true};
        run<float>(1, [&](std::int64_t) { return block; });
      }
      convert_block(wide_c, n, m, n, out, p.ldc);
    }
  }
}

}  // namespace

std::int64_t gemm_scratch(const GemmShape& g, DType dtype, Device device) {
  if (device.is_gpu()) return 0;
  if (dtype == DType::f32) return adds_halves(g) ? g.m * g.n : 0;
  if (!is_half(dtype)) return 0;
  if (dtype == DType::bf16 && cpu::multiplies_bf16()) return 0;
  if (has_dot_products(g)) return 0;
  const std::int64_t m = widened(g.m), n = widened(g.n), k = widened(g.k);
  return m * k + k * n + m * n;
}

namespace cpu {

void gemm(const Tensor& a, const Tensor& b, const GemmShape& g, const Tensor& scratch,
          const Tensor& out) {
  const std::int64_t batch = g.batch.numel();
  if (batch == 0 || g.m == 0 || g.n == 0) return;
  dispatch_floating(a.dtype(), [&]<class T>() {
    const T* pa = a.data<T>();
    const T* pb = b.data<T>();
    if constexpr (kIsHalf<T>) {
      const auto into = [&]<class Out>(Out* c) {
        const auto at = [&](std::int64_t i) { return product(g, pa, pb, c, i); };
        if (has_dot_products(g)) return row_product(at(0));
        if constexpr (std::is_same_v<T, bf16>)
          if (!scratch.defined())
            return run_tiles<bf16, Out>(batch, at, cpu::engine_for<bf16>(g.m, g.n, g.k));
        for (std::int64_t i = 0; i < batch; ++i) widened_product(at(i), scratch.data<float>());
      };
      out.dtype() == DType::f32 ? into(out.data<float>()) : into(out.data<T>());
    } else {
      T* pc = out.data<T>();
      if constexpr (std::is_same_v<T, float>)
        if (scratch.defined() && adds_halves(g))
          return product_in_halves(product(g, pa, pb, pc, 0), scratch, out);
      run<T>(batch, [&](std::int64_t i) { return product(g, pa, pb, pc, i); });
    }
  });
}

}  // namespace cpu
}  // namespace weft
