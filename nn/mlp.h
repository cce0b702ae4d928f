#pragma once
#include "weft/autograd/mlp.h"
#include "weft/nn/feed_forward.h"
#include "weft/nn/linear.h"

namespace weft::nn {

using weft::Activation;

struct MlpOptions {
  Activation activation = Activation::gelu_tanh;
  bool bias = true;
  bool recompute = false;  ///< save only the activation's input; recompute the activation
  Init init = Init::normal(0.02);
  Init proj_init = Init::normal(0.02);  ///< the projection back into the residual stream
};

/// dim -> hidden -> dim. With a gate `up` packs the rows of gate and up, (2 * hidden, dim), and is
/// named gate_up:  down(f(gate) * up). One fused op, unless a parallel plan replaces a matrix
/// product, or products are in FP8.
struct Mlp : FeedForward {
  MlpOptions options;
  Linear up;    // (hidden, dim), or (2 * hidden, dim)
  Linear down;  // (dim, hidden)

  Mlp(std::int64_t dim, std::int64_t hidden, const MlpOptions& options = {});
  Tensor operator()(const Tensor& x) const;
  void visit(Visitor& v) override;
  std::string describe() const override { return "Mlp"; }
  Output forward(const Tensor& x, const TokenContext&) const override { return {(*this)(x), {}}; }
  const char* name() const override { return "mlp"; }
  const fp8::LayerState* fp8_reader() const override { return up.fp8_reader(); }
  double multiply_adds() const override { return up.multiply_adds() + down.multiply_adds(); }

 private:
  /// Op by op.
  Tensor composed(const Tensor& x) const;
};

}  // namespace weft::nn
