#pragma once
#include <map>
#include <string>
#include <vector>

#include "weft/nn/shard_spec.h"

namespace weft::distributed {

/// How one parameter is distributed over the ranks of a mesh.
struct ParameterLayout {
  nn::ShardSpec spec;  ///< the shard that this rank holds
  /// Parameter of an expert, on the expert grid: gradients are summed over edp instead of dp.
  bool expert = false;
  /// Sharded over tp (experts: etp); otherwise every tp rank holds the same values.
  bool tp_cut = false;
  /// Replicated on every tp rank, but each rank's gradient covers only its own tokens: the
  /// gradients must be summed over tp.
  bool tp_partial = false;
  /// Rows of the shard from `shared_from` on are replicated on `shared_by` neighbouring tp ranks:
  /// key heads that serve query heads on all of them. Each of those ranks has the full gradient of
  /// such a row; a norm counts it once.
  std::int64_t shared_from = 0;
  int shared_by = 1;
  /// The user's axes of the mesh over which it is sharded, besides tp. Along the others all ranks
  /// hold the same values: the first counts them in a norm and writes them to a checkpoint.
  std::vector<std::string> cut_over = {};
};

/// By dotted name. A parameter that is not listed is replicated, dense, and has its full gradient.
using Layout = std::map<std::string, ParameterLayout>;

}  // namespace weft::distributed
