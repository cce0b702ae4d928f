#pragma once
#include "weft/optim/optimizer.h"

namespace weft::optim {

struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;                            ///< L2: added to the gradient
  MasterWeights master_weights = MasterWeights::f32;  ///< of bf16 and f16 parameters
  Rounding rounding = Rounding::nearest;              ///< of bf16 parameters without them
  std::uint64_t seed = 0;                             ///< of stochastic rounding
  std::vector<GroupRule> groups = {};
  /// If set, one per parameter; replaces weight_decay and groups.
  std::optional<std::vector<ParamSettings>> settings = {};
};

/// Stochastic gradient descent:  v = momentum v + g;  p -= lr v  (Nesterov: p -= lr (g + momentum
/// v)), where g is the gradient plus weight_decay p.
/// Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep
/// learning".
class Sgd : public Optimizer {
 public:
  /// Throws Error on a negative lr, momentum outside [0, 1), nesterov without momentum, or a
  /// parameter that is not a leaf or is given twice.
  explicit Sgd(NamedTensors parameters, const SgdOptions& options = {});
  /// Trains the whole module.
  /// Throws Error also if visit() omits a parameter: see nn::trained_parameters().
  template <Trainable M>
  explicit Sgd(const M& module, const SgdOptions& options = {})
      : Sgd(trained_parameters(module), options) {}

 private:
  void update(const double* grad_scale, std::size_t begin, std::size_t end) override;
  SgdOptions options_;
  std::vector<SgdSlot> slots_;  ///< reused, so that a step allocates nothing
};

}  // namespace weft::optim
