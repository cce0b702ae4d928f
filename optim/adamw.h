#pragma once
#include "weft/optim/optimizer.h"

namespace weft::optim {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;
  bool decoupled = true;  ///< false: Adam with L2, which adds the decay to the gradient
  /// f32, bf16, f16 or e4m3; an f64 parameter always has f64 states.
  DType m_dtype = DType::f32;
  DType v_dtype = DType::f32;
  Rounding rounding = Rounding::nearest;
  std::uint64_t seed = 0;                             ///< of stochastic rounding
  MasterWeights master_weights = MasterWeights::f32;  ///< of bf16 and f16 parameters
  std::vector<GroupRule> groups = {};
  /// If set, one per parameter; replaces weight_decay and groups.
  std::optional<std::vector<ParamSettings>> settings = {};
};

/// Adam with decoupled weight decay, all parameters in one fused pass:
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   p -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p)
/// t is the number of steps of the optimizer, as in Apex. PyTorch counts the steps of each
/// parameter; here a parameter whose first gradient comes late takes larger first steps.
///
/// Arithmetic is f32 (f64 for f64 parameters). f16 states have one scale per tensor; e4m3 states
/// have one per 32 elements, a power of two, and a v above 0 never becomes 0. With nearest rounding
/// an e4m3 v, and with beta2 above 0.99 a bf16 v, cannot decay, because a change of 1/1000 is below
/// its precision; it stays wrong, and a warning is logged. Stochastic rounding has the right mean.
///
/// Source: Loshchilov, Hutter 2019, arXiv:1711.05101, algorithm 2; Kingma, Ba 2015,
/// arXiv:1412.6980.
class AdamW : public Optimizer {
 public:
  /// Throws Error on a negative lr, eps or decay, a beta outside [0, 1), a parameter that is
  /// not a leaf or is given twice, or a state dtype not listed.
  explicit AdamW(NamedTensors parameters, const AdamWOptions& options = {});
  /// Trains the whole module.
  /// Throws Error also if visit() omits a parameter: see nn::trained_parameters().
  template <Trainable M>
  explicit AdamW(const M& module, const AdamWOptions& options = {})
      : AdamW(trained_parameters(module), options) {}

 private:
  void update(const double* grad_scale, std::size_t begin, std::size_t end) override;
  /// Updates either the f64 parameters (wide) or all others.
  void update_all(bool wide, const double* grad_scale, std::size_t begin, std::size_t end);
  StepNumbers numbers(bool wide) const;
  AdamWOptions options_;
  std::size_t m_, v_;            ///< indices in states_
  std::vector<AdamSlot> slots_;  ///< reused, so that a step allocates nothing
};

}  // namespace weft::optim
