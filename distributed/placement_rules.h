#pragma once
#include <vector>

#include "weft/distributed/axis_placement.h"
#include "weft/distributed/comm_cost.h"

namespace weft::distributed {

/// An op, as the rules about the placements of its operands see it.
struct PlacedOp {
  enum class Kind : std::uint8_t {
    linear,     ///< x (..., k), weight (n, k) -> (..., n)
    matmul,     ///< a (..., m, k), b (..., k, n) -> (..., m, n), equal leading axes
    embedding,  ///< ids (...), table (V, C) -> (..., C); with S(0), rows of other ranks count as 0
    add,        ///< and sub; operands broadcast
    mul,
    div,
    maximum,
    minimum,
    scale,      ///< by one number that is not negative, and casts
    neg,        ///< and scale by a negative number
    shift,      ///< adds one number
    monotone,   ///< increasing functions that are not linear: exp, relu, sigmoid, tanh
    pointwise,  ///< every other function of one element
    sum,        ///< over `dim`, which the result keeps with length 1; likewise mean, max and min
    mean,
    max,
    min,
    rows,       ///< softmax or norm along `dim`
    transpose,  ///< exchanges the axes `dim` and `other`
    select,     ///< takes the axis `dim` apart or one index of it (unbind, reshape): cannot be cut
  };
  Kind kind = Kind::pointwise;
  int dim = 0;
  int other = 0;
};

/// One way to compute an op without communication on the ranks along one axis of a mesh.
struct PlacementRule {
  std::vector<AxisPlacement> operands;
  AxisPlacement result;
  friend bool operator==(const PlacementRule&, const PlacementRule&) = default;
};

/// All of them, the one in which everything is replicated first. P(sum) plus R is not among them: R
/// must be redistributed. `mean`, `max` and `min` of a shard need as many elements on each of
/// `ranks`, the ranks of the mesh.
///
/// Throws   Error on another number of operands, and a dim that the first one does not have
std::vector<PlacementRule> placement_rules(const PlacedOp& op, const std::vector<Shape>& operands,
                                           int ranks);

/// An operand of an op and how the ranks hold it.
struct PlacedOperand {
  Shape whole;
  DType dtype = DType::f32;
  Placements placements;
  bool moves = true;  ///< may be redistributed
};

/// How an op is computed: redistribute() takes each operand to its placements here, then every
/// rank computes its part.
struct PlacementChoice {
  std::vector<Placements> operands;
  Placements result;
  double us = 0;  ///< estimated time of redistributing
};

/// The choice for operands on a mesh, the same on all ranks: of all combinations of a rule for each
/// axis the one whose redistribution is cheapest, the first of equal ones. So replicated operands
/// stay replicated, although a chunk of them is free. Does not communicate.
///
///   // x f32[64, 32](S(1)), weight f32[16, 32](S(1)): as they are, with a result P(sum)
///   choose_placements({PlacedOp::Kind::linear}, {x, weight}, {&mesh.tp()}, kUsualCluster)
///
/// Throws   Error as placement_rules() and shard_spec(); naming operands, placements and mesh where
///          no rule fits: a select of a shard, operands that do not move
PlacementChoice choose_placements(const PlacedOp& op, const std::vector<PlacedOperand>& operands,
                                  const MeshAxes& axes, const Cluster& cluster);

}  // namespace weft::distributed
