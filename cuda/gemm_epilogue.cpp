// Tries to compute everything in one product of the library; where the library cannot, runs the
// parts one after another.
#include "weft/core/kernels/gemm_epilogue.h"

#include "weft/core/kernels/elementwise.h"
#include "weft/core/kernels/reduce.h"
#include "weft/cuda/gemm_plan.h"

namespace weft::cuda {
namespace {

constexpr std::int64_t kAuxMultiple = 8;  // row distance of an auxiliary matrix

bool has_epilogues(DType t) { return t != DType::f64; }

void sum_rows(const Tensor& x, const Tensor& partial, const Tensor& out) {
  reduce(x, ReduceOp::sum, {1, x.dim(0), x.dim(1)}, Tensor(), 1, partial, out);
}

}  // namespace

void gemm_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, bool,
               const Tensor& hidden, const Tensor& act) {
  GemmShape g;
  g.m = x.dim(0);
  g.n = g.ldc = weight.dim(0);
  g.k = g.lda = g.ldb = x.dim(1);
  g.trans_b = true;
  Product p = by_column(g, x, act);
  p.epilogue = hidden.defined() ? lt::Epilogue::gelu_aux_bias : lt::Epilogue::gelu_bias;
  if (hidden.defined()) p.ld_aux = g.n;
  if (try_product(p, {.a = weight.raw(),
                      .b = x.raw(),
                      .d = act.raw(),
                      .bias = bias.raw(),
                      .aux = hidden.defined() ? hidden.raw() : nullptr}))
    return;
  const Tensor& sums = hidden.defined() ? hidden : act;
  gemm_bias(x, weight, bias, sums);
  unary(sums, UnaryOp::gelu_tanh, act);
}

void gemm_gelu_bwd(const GemmGeluBwdIn& in, const GemmGeluBwdOut& out) {
  const Tensor &dy = in.dy, &weight = in.weight, &hidden = in.hidden;
  const Tensor &dhidden = out.dhidden, &dbias = out.dbias;
  const GemmShape g = gelu_bwd_shape(dy, weight);
  bool done = false;
  if (in.tanh && has_epilogues(dy.dtype()) && g.n % kAuxMultiple == 0) {
    Product p = by_column(g, dy, dhidden);
    p.epilogue = dbias.defined() ? lt::Epilogue::dgelu_bias_gradient : lt::Epilogue::dgelu;
    p.ld_aux = g.n;
    done = try_product(p, {.a = weight.raw(),
                           .b = dy.raw(),
                           .d = dhidden.raw(),
                           .bias = dbias.defined() ? dbias.raw() : nullptr,
                           .aux = hidden.raw()});
  }
  if (!done) {
    gemm(dy, weight, g, out.scratch, dhidden);
    binary(hidden, dhidden, in.tanh ? BinaryOp::gelu_tanh_bwd : BinaryOp::gelu_erf_bwd, dhidden);
    if (dbias.defined()) sum_rows(dhidden, out.partial, dbias);
  }
  if (out.act.defined()) unary(hidden, in.tanh ? UnaryOp::gelu_tanh : UnaryOp::gelu_erf, out.act);
}

void gemm_bias_grad(const Tensor& dy, const Tensor& x, bool accumulate, const Tensor& scratch,
                    const Tensor& partial, const Tensor& out, const Tensor& dbias) {
  const GemmShape g = bias_grad_shape(dy, x, accumulate);
  if (has_epilogues(dy.dtype())) {
    Product p = by_column(g, dy, out);
    p.epilogue = lt::Epilogue::bias_gradient_b;
    if (try_product(p, {.a = x.raw(), .b = dy.raw(), .d = out.raw(), .bias = dbias.raw()})) return;
  }
  gemm(dy, x, g, scratch, out);
  sum_rows(dy, partial, dbias);
}

}  // namespace weft::cuda
