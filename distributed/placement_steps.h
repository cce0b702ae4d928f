#pragma once
#include <utility>
#include <vector>

#include "weft/distributed/axis_placement.h"
#include "weft/distributed/comm_cost.h"

namespace weft::distributed {

/// One mesh axis changes its placement.
struct PlacementStep {
  std::size_t axis = 0;
  AxisPlacement to = AxisPlacement::replicate();
};

struct PlacementSteps {
  std::vector<PlacementStep> steps;
  double us = 0;  ///< estimated time of all steps
};

/// The cheapest sequence of steps, the shorter of equal ones: equal on all ranks. A step is one
/// collective or none. Does not communicate.
///
/// Throws   Error where check_placements() does
/// Source   Dijkstra 1959, "A note on two problems in connexion with graphs"
PlacementSteps cheapest_steps(const Shape& whole, DType dtype, const MeshAxes& axes,
                              const Placements& from, const Placements& to, const Cluster& cluster);

/// Throws Error as shard_spec(), in the name of `op`.
void check_placements(const char* op, const Shape& whole, const Placements& placements,
                      const MeshAxes& axes);
/// Whether no two partials are reductions whose order matters.
bool reduces_in_any_order(const Placements& placements);
/// The chunk of [begin, end) that a rank holds.
std::pair<std::int64_t, std::int64_t> chunk_of(std::int64_t begin, std::int64_t end, int rank,
                                               int ranks);

}  // namespace weft::distributed
