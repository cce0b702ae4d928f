#pragma once
#include <functional>

#include "weft/distributed/plan.h"

namespace weft::distributed {

/// What a rank does with the tensors of a module that a plan places.
struct ModuleMoves {
  AxisPlacement used, computed, output;
  /// The ranks compute different things from what every one of them holds, so that the gradients
  /// of replicated parameters are parts.
  bool partial = false;
  std::function<Tensor(const Tensor& x)> enter;  ///< null: x is used as it arrives
  std::function<Tensor(Tensor y)> leave;         ///< null: y leaves as it is computed
};

/// For a module whose `used` and `computed` are given or default. `name` is for messages.
/// Throws Error on an output that is a partial or cannot be made of `computed`.
ModuleMoves moves_of(const std::string& name, const ModulePlacements& m, ProcessGroup& tp);

/// m with the `used` and `computed` of x (..., k) times weight (n, k): chosen for the placement of
/// the weight, which stays. Throws Error as choose_placements().
ModulePlacements of_linear(ModulePlacements m, const Shape& weight, ProcessGroup& tp);

}  // namespace weft::distributed
