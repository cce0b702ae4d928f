// Products of FP8 operands: cuBLASLt multiplies the rows of both, with one scale each, and sums in
// f32.
#include "weft/core/kernels/fp8_product.h"

#include "weft/core/kernels/copy.h"
#include "weft/cuda/gemm_plan.h"

namespace weft::cuda {
namespace {

const char* bytes_at(const Tensor& t, std::int64_t element) {
  return static_cast<const char*>(t.raw()) +
         element * static_cast<std::int64_t>(size_of(t.dtype()));
}

const float* scale_at(const Tensor& inverse, std::int64_t e) {
  return inverse.data<float>() + (inverse.numel() == 1 ? 0 : e);
}

// Rows times rows: out (m, n) = a (m, k) b (n, k)^T.
GemmShape rows_by_rows(std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate) {
  GemmShape g;
  g.m = m;
  g.n = g.ldc = n;
  g.k = g.lda = g.ldb = k;
  g.trans_b = true;
  g.accumulate = accumulate;
  return g;
}

}  // namespace

void fp8_product(const Fp8ProductIn& in, const Tensor&, const Tensor& out) {
  const std::int64_t O = in.outputs, I = in.inputs;
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < in.count(); first += in.rows_of(e++)) {
    const std::int64_t rows = in.rows_of(e), matrix = e * O * I;
    const auto part = [&](std::int64_t n, std::int64_t width, std::int64_t at) {
      return out.alias({n, width}, {width, 1}, at);
    };
    const bool to_weight = in.kind == GroupedProduct::weight_grad;
    if (rows == 0) {
      if (to_weight && !in.accumulate) fill(part(O, I, matrix), 0);
      continue;
    }
    const bool forward = in.kind == GroupedProduct::forward;
    const Tensor to = to_weight ? part(O, I, matrix)
                      : forward ? part(rows, O, first * O)
                                : part(rows, I, first * I);
    const bool biased = forward && in.bias.defined();
    if (biased) copy(in.bias.alias({rows, O}, {0, 1}, e * O), to);
    const GemmShape g = to_weight ? rows_by_rows(O, I, rows, in.accumulate)
                        : forward ? rows_by_rows(rows, O, I, biased)
                                  : rows_by_rows(rows, I, O, in.accumulate);
    Product p = by_column(g, in.b, out);
    p.type_b = by_column(g, in.a, out).type;
    run_product(p, {.a = bytes_at(in.b, to_weight ? first * I : matrix),
                    .b = bytes_at(in.a, first * (forward ? I : O)),
                    .d = to.raw(),
                    .scale_a = scale_at(in.b_inverse, e),
                    .scale_b = scale_at(in.a_inverse, e)});
  }
}

}  // namespace weft::cuda
