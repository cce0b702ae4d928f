#pragma once
#include <string>
#include <utility>
#include <vector>

#include "weft/core/named_tensor.h"

namespace weft {

// Names of state dictionaries, for weights that another program saved. The tensors are shared.
//   model.load_state_dict(renamed(without_prefix(file, "module."), {{"self_attn.", "attn."}}));

/// Every name with `prefix` before it.
StateDict with_prefix(const StateDict& state, const std::string& prefix);
/// The entries whose names begin with `prefix`, without it.
/// Throws Error if there are none.
StateDict without_prefix(const StateDict& state, const std::string& prefix);
/// Replaces `first` by `second` wherever it occurs in a name, for one pair after the other.
/// Throws Error if no name contains `first`, or if two entries get one name.
StateDict renamed(const StateDict& state,
                  const std::vector<std::pair<std::string, std::string>>& pairs);

}  // namespace weft
