#pragma once
#include "weft/autograd/delayed_gradients.h"
#include "weft/nn/mlp.h"

namespace weft::nn {

struct ExpertsOptions {
  Activation activation = Activation::swiglu;
  bool bias = false;
  bool recompute = false;  ///< save only the activation's input; recompute the activation
  Init init = Init::normal(0.02);
  Init proj_init = Init::normal(0.02);  ///< the projection back into the residual stream
};

/// The experts' MLPs: expert e processes its own rows of x.
///   y_i = down_e (p_i act(up_e x_i + b1_e)) + p_i b2_e
/// which is p_i times the output of MLP e.
struct Experts : Module {
  ExpertsOptions options;
  Tensor up;         // (experts, hidden, dim), or (experts, 2 * hidden, dim) with a gate
  Tensor up_bias;    // (experts, hidden), or (experts, 2 * hidden) with a gate, or null
  Tensor down;       // (experts, dim, hidden)
  Tensor down_bias;  // (experts, dim), or null
  fp8::LayerState fp8_up, fp8_down;

  Experts(std::int64_t experts, std::int64_t dim, std::int64_t hidden,
          const ExpertsOptions& options = {});
  /// x (N, dim), probs (N) f32 (f64 for f64), rows (experts) i64 on the host with sum N -> (N, dim)
  /// later: where backward computes the gradients of up and down
  Tensor operator()(const Tensor& x, const Tensor& probs, const Tensor& rows,
                    const DelayedGradients& later = {}) const;
  std::int64_t count() const { return up.dim(0); }
  /// Multiply-adds for one row of x.
  double multiply_adds() const {
    return static_cast<double>(up.numel() + down.numel()) / static_cast<double>(count());
  }
  void visit(Visitor& v) override;
  std::string describe() const override;
  unsigned shard_members() const override { return Shard::kBiasRanks; }

 private:
  /// grouped_linear(), in FP8 inside an fp8::Autocast.
  static Tensor multiply(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const Tensor& rows, const Tensor& bias_scale, const fp8::LayerState& state,
                         const DelayedGradients& later);
};

/// An MLP that every token passes through, beside the experts. With a gate its output is multiplied
/// by sigmoid(x . w).
struct SharedExpert : Module {
  Mlp mlp;
  std::optional<Linear> gate;  // (1, dim)

  SharedExpert(std::int64_t dim, std::int64_t hidden, bool gated, const MlpOptions& options = {});
  Tensor operator()(const Tensor& x) const;
  void visit(Visitor& v) override;
  std::string describe() const override { return "SharedExpert"; }
  double multiply_adds() const { return mlp.multiply_adds() + (gate ? gate->multiply_adds() : 0); }
};

}  // namespace weft::nn
