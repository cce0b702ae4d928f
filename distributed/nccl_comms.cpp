#include "weft/distributed/nccl_comms.h"

#include <string>
#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/agree.h"

#if WEFT_WITH_CUDA

namespace weft::distributed {

namespace nccl = cuda::nccl;

NcclComms::NcclComms(World& bootstrap, std::shared_ptr<NcclJob> job,
                     std::shared_ptr<const RankLists> world)
    : bootstrap_(bootstrap), job_(std::move(job)) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(nccl::Id));
  nccl::Id id;
  if (bootstrap.rank() == 0) id = nccl::make_id();
  bootstrap.all().broadcast(Tensor::wrap(id.bytes, {kBytes}, DType::u8), 0).wait();
  plan_.use(world, 0);
  comms_.push_back(job_->connect(id, bootstrap.rank(), bootstrap.size()));
}

nccl::Comm NcclComms::of(const GroupCall& call) {
  const int known = plan_.size(), number = plan_.use(call.lists, call.queue);
  if (number == CommunicatorPlan::kNone) return nullptr;
  if (number < known) return comms_[static_cast<std::size_t>(number)];
  check_same_call(call);
  const bool takes_part = call.list >= 0 && call.ranks().size() > 1;
  comms_.push_back(
      job_->split(comms_[0], takes_part ? call.list : nccl::kNoColor, call.rank, call.name));
  return comms_.back();
}

// A rank that begins another group than the others would split another communicator and hang.
void NcclComms::check_same_call(const GroupCall& call) {
  const std::string first = text_from(bootstrap_, 0, call.name);
  check(
      first == call.name,
      "nccl: all ranks must first use their groups in the same order: rank 0 begins with {} where "
      "rank {} begins with {}",
      first, bootstrap_.rank(), call.name);
}

}  // namespace weft::distributed

#endif
