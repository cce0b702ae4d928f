#include "weft/core/kernels/gemm_epilogue.h"

#include <algorithm>

#include "weft/core/cpu/packed_product.h"
#include "weft/core/kernels/elementwise_math.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/kernels/reduce.h"

namespace weft {
namespace {

// The library's algorithms with an auxiliary matrix require a row distance that is a multiple of
// this.
constexpr std::int64_t kAuxMultiple = 8;

ReduceExtent rows_of(std::int64_t rows, std::int64_t cols) { return {1, rows, cols}; }

// A tile of 512 columns of hidden, dhidden and act stays in the L2 cache. Rows are added in blocks,
// in f32, as in reduce().
constexpr std::int64_t kTileCols = 512, kTileRows = 64;

template <class T>
void gelu_row(bool tanh, const T* x, T* y, std::int64_t n) {
  if constexpr (std::is_same_v<T, double>) {
    for (std::int64_t i = 0; i < n; ++i)
      y[i] = tanh ? apply<UnaryOp::gelu_tanh>(x[i]) : apply<UnaryOp::gelu_erf>(x[i]);
  } else {
    const RowKernels<T>& f = simd().of<T>();
    (tanh ? f.gelu_tanh : f.gelu_erf)(x, y, n);
  }
}

// dy becomes the gradient of x, and act, unless it is null, gelu(x). act may be x.
template <class T>
void gelu_bwd_row(bool tanh, const T* x, T* dy, T* act, std::int64_t n) {
  if constexpr (std::is_same_v<T, double>) {
    for (std::int64_t i = 0; i < n; ++i) {
      dy[i] = tanh ? apply<BinaryOp::gelu_tanh_bwd>(x[i], dy[i])
                   : apply<BinaryOp::gelu_erf_bwd>(x[i], dy[i]);
      if (act) gelu_row(tanh, x + i, act + i, 1);
    }
  } else {
    const RowKernels<T>& f = simd().of<T>();
    if (act)
      (tanh ? f.gelu_tanh_bwd_and_y : f.gelu_erf_bwd_and_y)(x, dy, dy, act, n);
    else
      (tanh ? f.gelu_tanh_bwd : f.gelu_erf_bwd)(x, dy, dy, n);
  }
}

template <class T>
void add_columns(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width,
                 double* totals) {
  if constexpr (std::is_same_v<T, double>) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < width; ++c) totals[c] += x[r * stride + c];
  } else {
    float sums[kTileCols];
    simd().of<T>().column_sums(x, rows, stride, width, sums);
    for (std::int64_t c = 0; c < width; ++c) totals[c] += static_cast<double>(sums[c]);
  }
}

// On entry dhidden is the gradient of gelu(hidden), on exit that of hidden. dbias and act as
// documented at the kernel; partial and act are null for none.
template <class T>
void gelu_bwd_pass(const T* hidden, bool tanh, std::int64_t m, std::int64_t n, double* partial,
                   T* dhidden, const Tensor& dbias, T* act) {
  const std::int64_t chunks = reduce_chunks(rows_of(m, n), kCpu), step = (m + chunks - 1) / chunks;
  const std::int64_t blocks = (n + kTileCols - 1) / kTileCols;
  constexpr std::int64_t kWork = 32;  // an exp, a division and the surrounding operations
  parallel_for(chunks * blocks, kWork * step * std::min(n, kTileCols),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t item = begin; item < end; ++item) {
                   const std::int64_t chunk = item / blocks, c0 = item % blocks * kTileCols;
                   const std::int64_t width = std::min(kTileCols, n - c0);
                   const std::int64_t stop = std::min(m, (chunk + 1) * step);
                   double totals[kTileCols] = {};
                   for (std::int64_t r0 = chunk * step; r0 < stop; r0 += kTileRows) {
                     const std::int64_t rows = std::min(kTileRows, stop - r0);
                     for (std::int64_t at = r0 * n + c0; at < (r0 + rows) * n; at += n)
                       gelu_bwd_row(tanh, hidden + at, dhidden + at, act ? act + at : nullptr,
                                    width);
                     if (partial) add_columns(dhidden + r0 * n + c0, rows, n, width, totals);
                   }
                   if (partial) std::copy_n(totals, width, partial + chunk * n + c0);
                 }
               });
  if (!partial) return;
  dispatch_floating(dbias.dtype(), [&]<class B>() {
    B* const to = dbias.data<B>();
    parallel_for(n, chunks, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        double total = partial[c];
        for (std::int64_t k = 1; k < chunks; ++k) total += partial[k * n + c];
        to[c] = static_cast<B>(static_cast<Compute<B>>(total));
      }
    });
  });
}

}  // namespace

bool fuses_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, bool tanh) {
  if (!bias.defined() || !x.is_contiguous() || !weight.is_contiguous() || !bias.is_contiguous())
    return false;
  if (x.numel() == 0 || weight.numel() == 0) return false;
  if (x.device().is_gpu())  // cuBLASLt supports the tanh form only, and not f64
    return tanh && x.dtype() != DType::f64 && weight.dim(0) % kAuxMultiple == 0;
  return x.dtype() == DType::f32;
}

GemmShape gelu_bwd_shape(const Tensor& dy, const Tensor& weight) {
  GemmShape g;
  g.m = dy.dim(0);
  g.k = g.lda = dy.dim(1);
  g.n = g.ldb = g.ldc = weight.dim(1);
  return g;
}

GemmShape bias_grad_shape(const Tensor& dy, const Tensor& x, bool accumulate) {
  GemmShape g;
  g.m = g.lda = dy.dim(1);
  g.k = dy.dim(0);
  g.n = g.ldb = g.ldc = x.dim(1);
  g.trans_a = true;
  g.accumulate = accumulate;
  return g;
}

std::int64_t epilogue_partial(std::int64_t rows, std::int64_t cols, Device device) {
  return reduce_chunks(rows_of(rows, cols), device) * cols;
}

namespace cpu {

void gemm_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, bool tanh,
               const Tensor& hidden, const Tensor& act) {
  const std::int64_t m = x.dim(0), n = weight.dim(0), k = x.dim(1);
  const Tensor& sums = hidden.defined() ? hidden : act;
  float *h = sums.data<float>(), *y = act.data<float>();
  const float* b = bias.data<float>();
  if (fuses_bias(x, weight, sums)) {
    const Product<float> product{
        x.data<float>(), weight.data<float>(), h, m, n, k, k, k, n, false, true, false};
    return parallel_product(
        product, b,
        [&](std::int64_t first, std::int64_t rows, std::int64_t j, std::int64_t columns) {
          for (std::int64_t at = first * n + j; at < (first + rows) * n; at += n)
            gelu_row(tanh, h + at, y + at, columns);
        });
  }
  GemmShape g;
  g.m = m;
  g.n = g.ldc = n;
  g.k = g.lda = g.ldb = k;
  g.trans_b = true;
  gemm(x, weight, g, Tensor(), sums);
  parallel_for(m, 16 * n, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < n; ++c) h[r * n + c] += b[c];
      gelu_row(tanh, h + r * n, y + r * n, n);
    }
  });
}

void gemm_gelu_bwd(const GemmGeluBwdIn& in, const GemmGeluBwdOut& out) {
  gemm(in.dy, in.weight, gelu_bwd_shape(in.dy, in.weight), out.scratch, out.dhidden);
  const Tensor& hidden = in.hidden;
  dispatch_floating(hidden.dtype(), [&]<class T>() {
    gelu_bwd_pass(hidden.data<T>(), in.tanh, hidden.dim(0), hidden.dim(1),
                  out.dbias.defined() ? out.partial.data<double>() : nullptr, out.dhidden.data<T>(),
                  out.dbias, data_or_null<T>(out.act));
  });
}

void gemm_bias_grad(const Tensor& dy, const Tensor& x, bool accumulate, const Tensor& scratch,
                    const Tensor& partial, const Tensor& out, const Tensor& dbias) {
  gemm(dy, x, bias_grad_shape(dy, x, accumulate), scratch, out);
  reduce(dy, ReduceOp::sum, rows_of(dy.dim(0), dy.dim(1)), Tensor(), 1, partial, dbias);
}

}  // namespace cpu
}  // namespace weft
