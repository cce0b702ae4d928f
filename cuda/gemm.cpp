#include "weft/core/kernels/gemm.h"

#include <atomic>

#include "weft/core/cuda.h"
#include "weft/core/kernels/copy.h"
#include "weft/cuda/gemm_measure.h"

namespace weft::cuda {
namespace {

lt::DataType type_of(DType t) {
  switch (t) {
    case DType::f64:
      return lt::kF64;
    case DType::f32:
      return lt::kF32;
    case DType::f16:
      return lt::kF16;
    case DType::e4m3:
      return lt::kE4m3;
    case DType::e5m2:
      return lt::kE5m2;
    default:
      return lt::kBf16;
  }
}

lt::ComputeType compute_of(DType t) {
  if (t == DType::f64) return lt::kCompute64;
  return t == DType::f32 && tf32_allowed() ? lt::kComputeTf32 : lt::kCompute32;
}

std::int64_t bytes(const Tensor& t) { return static_cast<std::int64_t>(size_of(t.dtype())); }

}  // namespace

Product by_column(const GemmShape& g, const Tensor& a, const Tensor& out) {
  Product p;
  p.rows = g.n;
  p.cols = g.m;
  p.inner = g.k;
  p.lda = g.ldb;
  p.ldb = g.lda;
  p.ldd = g.ldc;
  p.trans_a = g.trans_b;
  p.trans_b = g.trans_a;
  p.accumulate = g.accumulate;
  p.device = a.device().index;
  p.type = p.type_b = type_of(a.dtype());
  p.result_type = type_of(out.dtype());
  p.compute = compute_of(a.dtype());
  return p;
}

void gemm(const Tensor& a, const Tensor& b, const GemmShape& g, const Tensor&, const Tensor& out) {
  if (g.batch.numel() == 0 || g.m == 0 || g.n == 0) return;
  Product p = by_column(g, a, out);
  const int axes = g.batch.size();
  if (axes > 0) {  // the last axis is the library's batch; the axes before it are looped over
    p.batch = g.batch[axes - 1];
    p.step_a = g.b_step[axes - 1];
    p.step_b = g.a_step[axes - 1];
    p.step_d = g.out_step[axes - 1];
  }
  std::int64_t outer = 1;
  for (int i = 0; i + 1 < axes; ++i) outer *= g.batch[i];
  for (std::int64_t i = 0; i < outer; ++i) {
    std::int64_t rest = i, at_a = 0, at_b = 0, at_out = 0;
    for (int axis = axes - 2; axis >= 0; --axis) {
      const std::int64_t index = rest % g.batch[axis];
      rest /= g.batch[axis];
      at_a += index * g.a_step[axis];
      at_b += index * g.b_step[axis];
      at_out += index * g.out_step[axis];
    }
    run_product(p, {.a = static_cast<const char*>(b.raw()) + at_b * bytes(b),
                    .b = static_cast<const char*>(a.raw()) + at_a * bytes(a),
                    .d = static_cast<char*>(out.raw()) + at_out * bytes(out)});
  }
}

void gemm_bias(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out) {
  GemmShape g;
  g.m = x.dim(0);
  g.n = weight.dim(0);
  g.k = g.lda = g.ldb = x.dim(1);
  g.ldc = g.n;
  g.trans_b = true;
  Product p = by_column(g, x, out);
  p.epilogue = lt::Epilogue::bias;
  const ProductData data{.a = weight.raw(), .b = x.raw(), .d = out.raw(), .bias = bias.raw()};
  run_fused(p, data, out, [&](const Tensor& to) {  // the product is added to the bias
    copy(bias.alias(to.shape(), {0, bias.strides()[0]}, 0), to);
    GemmShape add = g;
    add.accumulate = true;
    gemm(x, weight, add, Tensor(), to);
  });
}

}  // namespace weft::cuda
