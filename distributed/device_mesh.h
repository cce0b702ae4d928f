#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/distributed/world.h"

namespace weft::distributed {

/// An axis of the user's own, such as the members of an ensemble.
struct UserAxis {
  std::string name;  ///< of its group
  int size = 1;
  /// The ranks along it work on different rows: dp_cp and dp_shard_cp, edp and edp_shard, and
  /// tp_dp_cp extend over it, so gradients are summed over it and ZeRO shards over it. Otherwise
  /// the reduction of gradients leaves it alone; ranks along it have equal parameters and
  /// gradients, unless ParameterLayout::cut_over names it.
  bool sums_gradients = false;
};

/// Number of ranks along each kind of parallelism. The dense grid has the axes tp, cp, dp_shard,
/// dp_replicate, the user's, pp, and the expert grid etp, ep, edp_shard, edp_replicate, the user's,
/// pp. Both number the same ranks, with the first axis varying fastest (innermost) and pp slowest.
/// So ep may extend over tp and dp, and edp is the number of ranks left.
struct Degrees {
  int dp = 0;   ///< data; 0 or -1: the ranks that the other degrees leave
  int tp = 1;   ///< tensor
  int cp = 1;   ///< context
  int pp = 1;   ///< pipeline
  int ep = 1;   ///< experts
  int etp = 0;  ///< tensor, inside experts; 0: as tp
  /// Replicas of what the ranks of dp shard; the axes dp_shard and edp_shard have the rest of dp
  /// and of edp.
  int dp_replicate = 1;
  std::vector<UserAxis> axes = {};  ///< the first varies fastest

  /// Data parallelism of the experts: the ranks that etp, ep, pp and the user's axes leave.
  int edp(int world_size) const {
    int others = (etp == 0 ? tp : etp) * ep * pp;
    for (const UserAxis& a : axes) others *= a.size;
    return world_size / others;
  }
};

/// Fills in dp and etp. Throws Error, in one line with all numbers, when the degrees do not fit the
/// world size, and on a user's axis whose name is empty or that of another group.
Degrees settle(int world_size, Degrees degrees);

/// Ranks numbered along several axes, the first varying fastest.
class RankGrid {
 public:
  struct Axis {
    std::string name;
    int size = 1;
  };
  explicit RankGrid(std::vector<Axis> axes);
  int size() const;
  int coordinate(int rank, std::string_view axis) const;
  /// The groups of ranks that differ along `axes` only: one ascending list per combination of the
  /// other axes' coordinates, sorted by first rank.
  RankLists groups(const std::vector<std::string>& axes) const;

 private:
  std::vector<Axis> axes_;
};

/// The names of the groups of every mesh, in the order of creation; those of user axes follow.
const std::vector<std::string>& mesh_group_names();
/// The ranks of every group of this name. Does not communicate. Throws Error on a name that a mesh
/// of these degrees does not have, and where settle() does.
RankLists rank_lists(int world_size, const Degrees& degrees, std::string_view name);

/// All process groups of a parallel job, by name:
///
///   tp cp dp pp         along one axis of the dense grid
///   dp_cp               sums the gradients of dense parameters
///   dp_shard dp_replicate  the two axes of dp; dp_shard_cp: dp_shard and cp
///   tp_cp, tp_dp_cp     hold all parts of a sequence, of a batch
///   mp                  tp and pp: the shards of one model
///   etp ep edp          along one axis of the expert grid; edp sums the gradients of experts
///   edp_shard edp_replicate  the two axes of edp
///   tp_ep, tp_ep_pp     etp and ep, and pp
///   tp_grad, etp_grad   as tp and etp; sum the gradients of which each rank has a part
///   world
///   and one by the name of each of Degrees::axes
///
///   DeviceMesh mesh(world, {.dp = 2, .axes = {{.name = "chain", .size = 2}}});
///   ProcessGroup& chain = mesh.group("chain");
///
/// fsdp and efsdp are other names of dp_shard_cp and edp_shard.
///
/// Those that sum gradients or gather weights (dp, dp_cp, edp, their shard and replicate parts,
/// tp_grad and etp_grad) communicate in Lane::data, pp in Lane::pipeline, the others in
/// Lane::model. Groups of one rank exist too; their collectives do nothing. Making a mesh
/// communicates nothing: over NCCL the ranks of a name are connected at its first collective, which
/// every rank of the world must reach, in the same order for all names.
class DeviceMesh {
 public:
  /// Called by every rank with the same degrees. Throws Error where settle() does.
  explicit DeviceMesh(World& world, const Degrees& degrees = {});

  World& world() const { return world_; }
  const Degrees& degrees() const { return degrees_; }
  /// This rank's group of this name. For a group along one axis, rank() is the coordinate. Throws
  /// Error on an unknown name.
  ProcessGroup& group(std::string_view name) const;
  /// Whether this rank is the first along all user axes without sums_gradients, other than those of
  /// `cut_over`: of what is cut over these, the ranks along the others are replicas. Throws Error
  /// unless each name of `cut_over` is that of another user axis without sums_gradients.
  bool is_first_replica(const std::vector<std::string>& cut_over) const;
  ProcessGroup& tp() const { return group("tp"); }
  ProcessGroup& cp() const { return group("cp"); }
  ProcessGroup& dp() const { return group("dp"); }
  ProcessGroup& pp() const { return group("pp"); }
  ProcessGroup& dp_cp() const { return group("dp_cp"); }
  ProcessGroup& ep() const { return group("ep"); }
  ProcessGroup& etp() const { return group("etp"); }
  ProcessGroup& edp() const { return group("edp"); }
  ProcessGroup& tp_ep() const { return group("tp_ep"); }

 private:
  World& world_;
  Degrees degrees_;
  std::map<std::string, std::shared_ptr<ProcessGroup>, std::less<>> groups_;
};

}  // namespace weft::distributed
