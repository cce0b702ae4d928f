// Tries to compute everything in one product of the library; where the library cannot, runs the
// parts one after another.
#include "weft/core/kernels/gemm_epilogue.h"

#include "weft/core/kernels/elementwise.h"
#include "weft/core/kernels/reduce.h"
#include "weft/cuda/gemm_measure.h"

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
  const ProductData data{.a = weight.raw(),
                         .b = x.raw(),
                         .d = act.raw(),
                         .bias = bias.raw(),
                         .aux = hidden.defined() ? hidden.raw() : nullptr};
  run_fused(p, data, act, [&](const Tensor& to) {
    const Tensor& sums = hidden.defined() ? hidden : to;
    gemm_bias(x, weight, bias, sums);
    unary(sums, UnaryOp::gelu_tanh, to);
  });
}

void gemm_gelu_bwd(const GemmGeluBwdIn& in, const GemmGeluBwdOut& out) {
  const Tensor &dy = in.dy, &weight = in.weight, &hidden = in.hidden;
  const Tensor &dhidden = out.dhidden, &dbias = out.dbias;
  const GemmShape g = gelu_bwd_shape(dy, weight);
  const auto parts = [&](const Tensor& to) {
    gemm(dy, weight, g, out.scratch, to);
    binary(hidden, to, in.tanh ? BinaryOp::gelu_tanh_bwd : BinaryOp::gelu_erf_bwd, to);
    if (dbias.defined()) sum_rows(to, out.partial, dbias);
  };
  if (in.tanh && has_epilogues(dy.dtype()) && g.n % kAuxMultiple == 0) {
    Product p = by_column(g, dy, dhidden);
    p.epilogue = dbias.defined() ? lt::Epilogue::dgelu_bias_gradient : lt::Epilogue::dgelu;
    p.ld_aux = g.n;
    const ProductData data{.a = weight.raw(),
                           .b = dy.raw(),
                           .d = dhidden.raw(),
                           .bias = dbias.defined() ? dbias.raw() : nullptr,
                           .aux = hidden.raw()};
    run_fused(p, data, dhidden, parts);
  } else {
    parts(dhidden);
  }
  if (out.act.defined()) unary(hidden, in.tanh ? UnaryOp::gelu_tanh : UnaryOp::gelu_erf, out.act);
}

void gemm_bias_grad(const Tensor& dy, const Tensor& x, bool accumulate, const Tensor& scratch,
                    const Tensor& partial, const Tensor& out, const Tensor& dbias) {
  const GemmShape g = bias_grad_shape(dy, x, accumulate);
  const auto parts = [&](const Tensor& to) {
    gemm(dy, x, g, scratch, to);
    sum_rows(dy, partial, dbias);
  };
  if (!has_epilogues(dy.dtype())) return parts(out);
  Product p = by_column(g, dy, out);
  p.epilogue = lt::Epilogue::bias_gradient_b;
  run_fused(p, {.a = x.raw(), .b = dy.raw(), .d = out.raw(), .bias = dbias.raw()}, out, parts);
}

}  // namespace weft::cuda
