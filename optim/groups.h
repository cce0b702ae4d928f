#pragma once
#include <optional>
#include <string>
#include <vector>

#include "weft/core/kernels/rounding.h"
#include "weft/core/named_tensor.h"

namespace weft::optim {

/// Overrides for the parameters whose dotted name contains a match of `pattern` (ECMAScript regular
/// expression). Rules are tried in order; the first match wins.
struct GroupRule {
  std::string pattern;
  double lr_scale = 1;                      ///< factor of the optimizer's lr
  std::optional<double> weight_decay = {};  ///< unset: the default below
};

/// The settings of one parameter.
struct ParamSettings {
  double lr_scale = 1;
  double weight_decay = 0;
  /// For stochastic rounding, if the tensor is a part of a shard of a larger parameter: where the
  /// shard is in it (unset: the shard is the whole), and the tensor's first element in the shard.
  std::optional<ShardPlace> shard = {};
  std::int64_t first = 0;
};

/// Throws Error "op: what must be finite and at least 0, got x" unless it is.
void check_setting(const char* op, const char* what, double x);

/// The settings of each parameter. Without a matching rule, `weight_decay` applies to tensors with
/// at least 2 axes, and 0 to norms and to biases, including those of experts: names whose last part
/// is "bias" or ends with "_bias".
/// Throws Error on an invalid pattern, on one that matches no parameter, and on a negative or
/// infinite lr_scale or decay.
std::vector<ParamSettings> assign_groups(const NamedTensors& parameters,
                                         const std::vector<GroupRule>& rules, double weight_decay);

}  // namespace weft::optim
