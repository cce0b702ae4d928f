#pragma once
#include <memory>
#include <vector>

#include "weft/core/kernels/nccl.h"
#include "weft/distributed/communicator_plan.h"
#include "weft/distributed/nccl_job.h"

namespace weft::distributed {

/// The communicators of one rank. The world's connects all ranks at the start; the others are split
/// from it at the first collective of their groups, all lists of a name at once. A queue has its
/// own, since NCCL runs the collectives of a communicator one after another. Creating a
/// communicator costs seconds with thousands of ranks, and memory on the GPU.
class NcclComms {
 public:
  /// Connects the world's communicator. `bootstrap` must outlive this object.
  NcclComms(World& bootstrap, std::shared_ptr<NcclJob> job, std::shared_ptr<const RankLists> world);
  /// The communicator of this rank's list; null for a list of one rank. The first call for a name
  /// is made by every rank of the world: throws Error on a rank that makes another call than rank
  /// 0.
  cuda::nccl::Comm of(const GroupCall& call);
  int size() const { return plan_.size(); }

 private:
  void check_same_call(const GroupCall& call);

  World& bootstrap_;
  const std::shared_ptr<NcclJob> job_;
  CommunicatorPlan plan_;
  std::vector<cuda::nccl::Comm> comms_;  // by number in the plan
};

}  // namespace weft::distributed
