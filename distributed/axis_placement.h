#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weft/distributed/process_group.h"
#include "weft/nn/shard_spec.h"

namespace weft::distributed {

/// How the ranks along one axis of a mesh hold a tensor: all of it, a chunk each, or values whose
/// reduction is the tensor.
class AxisPlacement {
 public:
  enum class Kind : std::uint8_t { replicate, shard, partial };
  enum class Op : std::uint8_t { sum, avg, max, min };

  static AxisPlacement replicate() { return {Kind::replicate, 0, Op::sum}; }
  /// Chunks of ceil(size / ranks) along `dim`; the last ones may be shorter or empty.
  static AxisPlacement shard(int dim) { return {Kind::shard, dim, Op::sum}; }
  static AxisPlacement partial(Op op = Op::sum) { return {Kind::partial, 0, op}; }

  Kind kind() const { return kind_; }
  int dim() const { return dim_; }  ///< of a shard
  Op op() const { return op_; }     ///< of a partial
  bool is_replicate() const { return kind_ == Kind::replicate; }
  bool is_shard() const { return kind_ == Kind::shard; }
  bool is_shard(int dim) const { return kind_ == Kind::shard && dim_ == dim; }
  bool is_partial() const { return kind_ == Kind::partial; }
  /// The same for a tensor of so many axes: a dim below 0 counts from the last one.
  AxisPlacement of_axes(int axes) const {
    return is_shard() && dim_ < 0 ? shard(dim_ + axes) : *this;
  }
  /// "R", "S(1)" or "P(sum)".
  std::string text() const;
  friend bool operator==(const AxisPlacement&, const AxisPlacement&) = default;

 private:
  AxisPlacement(Kind kind, int dim, Op op) : kind_(kind), dim_(dim), op_(op) {}
  Kind kind_;
  int dim_;
  Op op_;
};

/// One for each axis of a mesh. Where several axes shard the same dim, the first cuts the whole
/// and each later one cuts the chunk before it.
using Placements = std::vector<AxisPlacement>;
/// The axes of a mesh, outermost first: this rank's group along each, as in
/// {&mesh.dp(), &mesh.tp()}.
using MeshAxes = std::vector<ProcessGroup*>;

/// "S(1), R".
std::string text_of(const Placements& placements);
/// "f32[1024, 512](S(1), R) on mesh(dp=2, tp=4)".
std::string describe(DType dtype, const Shape& whole, const Placements& placements,
                     const MeshAxes& axes);

/// The part of a tensor that this rank holds. An axis that does not shard cuts nothing.
///
/// Throws   Error on another number of placements than axes, a dim that the tensor does not have,
///          and sums or averages beside maxima or minima, or maxima beside minima, whose result
///          depends on the order
nn::ShardSpec shard_spec(const Shape& whole, const Placements& placements, const MeshAxes& axes);

}  // namespace weft::distributed
